from __future__ import annotations

from rich.console import Console
from rich.table import Table

from models.database import database, require_replica_set
from models.indexes import Clash, create_indexes, find_clashes, find_problems
from models.settings import load_settings
from scripts.output import output


async def indexes(*, check: bool = False) -> int:
    """Create the indexes that PayLatch rests on (a deploy step), or only check them.

    Example: `paylatch indexes --check`

    Parameters
    ----------
    check
        Change nothing; exit 1 when an index is missing or differs.
    """
    settings, console = load_settings(), output()
    async with database(settings) as db:
        await require_replica_set(db)
        if check:
            problems = await find_problems(db, settings)
        else:
            clashes = [clash async for clash in find_clashes(db, settings)]
            if clashes:
                _show(console, clashes)
            created, problems = await create_indexes(db, settings)
            for name in created:
                console.print(f"created {name}", markup=False)
    for problem in problems:
        console.print(f"WRONG   {problem}", markup=False)
    if not problems:
        console.print("all indexes are in place")
    return 1 if problems else 0


def _show(console: Console, clashes: list[Clash]) -> None:
    table = Table("collection", "field", "value", "documents", title="Values that must be unique and are not")
    for clash in clashes:
        ids = ", ".join(str(document_id) for document_id in clash.ids[:5])
        more = f" and {len(clash.ids) - 5} more" if len(clash.ids) > 5 else ""
        table.add_row(clash.collection, clash.path, clash.value, ids + more)
    console.print(table)
    console.print("Decide which document keeps each value, clear it in the others, then run `paylatch indexes` again.")
