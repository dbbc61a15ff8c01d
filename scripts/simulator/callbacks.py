"""What Razorpay hands to a buyer's browser after paying, signed with the API key's secret; pure functions."""

from __future__ import annotations

from scripts.simulator.sender import sign

Fields = dict[str, str]


def checkout_fields(key_secret: str, order_id: str, payment_id: str) -> Fields:
    """What the checkout's handler receives for an order."""
    return {
        "razorpay_payment_id": payment_id,
        "razorpay_order_id": order_id,
        "razorpay_signature": sign(key_secret, f"{order_id}|{payment_id}".encode()),
    }


def subscription_fields(key_secret: str, subscription_id: str, payment_id: str) -> Fields:
    """What the checkout's handler receives for a subscription: the ids are signed the other way round."""
    return {
        "razorpay_payment_id": payment_id,
        "razorpay_subscription_id": subscription_id,
        "razorpay_signature": sign(key_secret, f"{payment_id}|{subscription_id}".encode()),
    }


def link_query(key_secret: str, link_id: str, payment_id: str, *, reference: str = "", status: str = "paid") -> Fields:
    """What a payment link's page adds to the address that it sends the buyer to."""
    signed = f"{link_id}|{reference}|{status}|{payment_id}"
    return {
        "razorpay_payment_id": payment_id,
        "razorpay_payment_link_id": link_id,
        "razorpay_payment_link_reference_id": reference,
        "razorpay_payment_link_status": status,
        "razorpay_signature": sign(key_secret, signed.encode()),
    }
