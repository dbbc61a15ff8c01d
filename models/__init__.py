"""What is stored and what is legal: settings, errors, clock, states, the reducer, documents, database, leases."""
