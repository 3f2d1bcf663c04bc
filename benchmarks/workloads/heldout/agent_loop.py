"""Agent loops of four kinds, with results as long as tools give them: logs, files, tables, search results.

The last steps of each have prompts of 1,500 tokens and more. Calls take other forms than JSON objects with thoughts:
shell lines, SQL, edits by search and replacement, tags.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from benchmarks.workloads.agent_loop import loop
from benchmarks.workloads.case import Case

Steps = list[tuple[str, str]]

_UNITS = ["gateway", "ledger", "mailer", "thumbs", "search"]
_PEOPLE = ["h.sorensen", "p.achebe", "m.kowalczyk", "t.nakamura", "l.ferreira"]


def _shell(rng: random.Random) -> tuple[str, Steps]:
    """A service that does not start: logs, a file of settings, an edit, and the proof."""
    unit, port, other = "ledger", rng.randrange(7000, 7900), rng.choice(["mailer", "search"])
    pid = rng.randrange(2000, 9000)
    clock = [f"{6 + i // 20:02}:{i % 20 * 3:02}:{rng.randrange(60):02}" for i in range(48)]
    log = []
    for i, time in enumerate(clock):
        name = unit if i % 4 == 3 else rng.choice(_UNITS)
        if name == unit:
            log.append(f"{time} {unit}[{pid + i}]: error: bind 0.0.0.0:{port}: address already in use")
        else:
            log.append(f"{time} {name}[{pid - i}]: {rng.choice(['request done', 'cache refreshed', 'job taken', 'job done'])} in {rng.randrange(2, 900)} ms id={rng.getrandbits(32):08x}")  # fmt: skip
    sockets = "\n".join(
        f'tcp LISTEN 0 128 0.0.0.0:{port if name == other else 8000 + i} users:(("{name}",pid={pid - 40 + i},fd=6))'
        for i, name in enumerate(n for n in _UNITS if n != unit)
    )
    settings = "\n".join(
        f"[{name}]\nlisten = 0.0.0.0:{port if name in (unit, other) else 8000 + i}\nworkers = {rng.randrange(1, 9)}\n"
        f"log = /var/log/{name}.log\ntimeout = {rng.randrange(5, 60)}s\nowner = {rng.choice(_PEOPLE)}\n"
        for i, name in enumerate(_UNITS)
    )
    block = settings[settings.index(f"[{other}]") :].split("\n\n")[0]
    fixed = block.replace(str(port), str(port + 1))
    status = "\n".join(f"{name:10} active (running) since {rng.choice(clock)}, port {port if name == unit else port + 1 if name == other else 8000 + i}" for i, name in enumerate(_UNITS))  # fmt: skip
    steps = [
        (f"The service {unit} does not come up after last night's restart. Find out why and mend it.",
         f"I begin with the log.\n\n```sh\njournalctl -n 48 -u {' -u '.join(_UNITS)}\n```"),
        ("exit 0\n" + "\n".join(log),
         f"{unit} cannot bind: `bind 0.0.0.0:{port}: address already in use`. I look at who listens there.\n\n```sh\nss -ltnp\n```"),
        ("exit 0\n" + sockets,
         f"Port {port} is held by {other} (pid {pid - 40 + [n for n in _UNITS if n != unit].index(other)}). I read the settings of both.\n\n```sh\ncat /etc/services.ini\n```"),
        ("exit 0\n" + settings,
         f"Both {unit} and {other} are set to port {port}. I move {other} to the next port by replacing its block.\n\n"
         f"<<<<<<< /etc/services.ini\n{block}\n=======\n{fixed}\n>>>>>>>\n\n```sh\nsystemctl restart {other} {unit}\nsystemctl status {' '.join(_UNITS)}\n```"),
        ("exit 0\n" + status,
         f"{unit} is up: `{next(line for line in status.splitlines() if line.startswith(unit))}`. The cause was that {other} "
         f"listened on 0.0.0.0:{port} too; it now listens on 0.0.0.0:{port + 1}. Done."),
    ]  # fmt: skip
    system = (
        "You operate a server through a shell. Say in one or two sentences what you conclude, quoting what you saw, then give "
        "the next command in a sh block. To edit a file, write a block: <<<<<<< path, the lines as they are, =======, the new "
        "lines, >>>>>>>. When everything works, say so and give no command."
    )
    return system, steps


def _tables(rng: random.Random) -> tuple[str, Steps]:
    """A question about a database: schema, samples, a query that fails, the query that works, the answer."""
    schema = (
        "CREATE TABLE borrower (borrower_id INTEGER PRIMARY KEY, surname TEXT, joined DATE, branch_code TEXT);\n"
        "CREATE TABLE title (title_id INTEGER PRIMARY KEY, heading TEXT, author TEXT, shelf TEXT, bought DATE);\n"
        "CREATE TABLE loan (loan_id INTEGER PRIMARY KEY, borrower_id INTEGER, title_id INTEGER, taken_out DATE, brought_back DATE);\n"
        "CREATE TABLE branch (branch_code TEXT PRIMARY KEY, quarter TEXT, opened INTEGER);"
    )
    quarters = rng.sample(["Harbour", "Old Town", "Millfield", "Northgate", "Riverside", "Hillside"], 5)
    codes = [f"{quarter[0]}{rng.randrange(10, 99)}" for quarter in quarters]
    branches = "\n".join(f"{c}|{q}|{rng.randrange(1890, 2015)}" for c, q in zip(codes, quarters, strict=True))
    loans = "\n".join(
        f"{7148 - i}|{rng.randrange(100, 999)}|{rng.randrange(1000, 9999)}|2026-0{rng.randrange(1, 6)}-{rng.randrange(10, 29)}|"
        + rng.choice(["", f"2026-0{rng.randrange(6, 10)}-{rng.randrange(10, 29)}"])
        for i in range(48)
    )
    counts = sorted(((rng.randrange(20, 400), quarter) for quarter in quarters), reverse=True)
    result = "\n".join(f"{quarter}|{count}|{rng.randrange(30, 90)}" for count, quarter in counts)
    query = (
        "SELECT branch.quarter, COUNT(*) AS overdue, MAX(julianday('2026-10-01') - julianday(loan.taken_out)) AS longest\n"
        "FROM loan\nJOIN borrower ON borrower.borrower_id = loan.borrower_id\n"
        "JOIN branch ON branch.branch = borrower.branch_code\n"
        "WHERE loan.brought_back IS NULL AND loan.taken_out < '2026-09-01'\nGROUP BY branch.quarter\nORDER BY overdue DESC;"
    )
    mended = query.replace("branch.branch =", "branch.branch_code =")
    steps = [
        ("Which branch has the most books that are overdue, and how long is the longest? A loan lasts 30 days; today is the 1st of October.",
         "<plan>Look at the tables first.</plan>\n<sql>\nSELECT sql FROM sqlite_master;\n</sql>"),
        (schema,
         "<plan>Loans are tied to branches through borrowers. I look at the branches.</plan>\n<sql>\nSELECT * FROM branch;\n</sql>"),
        (branches,
         "<plan>Now how dates and missing returns are written.</plan>\n<sql>\nSELECT * FROM loan ORDER BY loan_id DESC LIMIT 48;\n</sql>"),
        (loans,
         f"<plan>A book that is still out has no brought_back. I count those per quarter.</plan>\n<sql>\n{query}\n</sql>"),
        ("Error: no such column: branch.branch\nThe query was:\n" + query,
         f"<plan>The column is called branch_code.</plan>\n<sql>\n{mended}\n</sql>"),
        (result,
         f"<answer>\n{counts[0][1]} has the most overdue books.\n\n| quarter | overdue | longest, days |\n|---|---|---|\n"
         + "\n".join("| " + line.replace("|", " | ") + " |" for line in result.splitlines()) + "\n</answer>"),
    ]  # fmt: skip
    system = (
        "You answer questions about a database. Each message of yours is one <plan> and one <sql> with a single statement, or "
        "at the end one <answer> with the whole result as a table. Results come as rows with columns parted by |."
    )
    return system, steps


_PAGES = [
    (
        "Kites over the estuary",
        "The marsh harrier came back to the estuary in the year the sluice was opened. Three pairs bred in the reeds by the "
        "second summer, and eleven by the ninth. Wardens think that the higher water keeps foxes out of the reed beds, and "
        "that mink, which swim, are now the greater danger. Rafts with clay pads show their tracks from March on.",
    ),
    (
        "The sluice and its critics",
        "When the board voted to open the old sluice for one tide in four, farmers upstream feared for their drains. A gauge "
        "was set at each of the nine bridges. In six years the level rose above the agreed mark on four days, all of them "
        "after rain, and the board paid for two flooded cellars. The vote was repeated in the seventh year and was unanimous.",
    ),
    (
        "A census of reed",
        "Reed was mapped from kites with cameras, because drones were not allowed near the harriers. The area grew from "
        "forty-two to sixty-eight hectares. Most of the new reed stands where salt water reaches it only on spring tides. "
        "The oldest beds have thinned, and volunteers cut a tenth of them each winter and carry the reed to a thatcher.",
    ),
    (
        "Eels by lantern light",
        "The eel pass beside the sluice is a ramp lined with bristles. On dark nights in May up to four thousand young eels "
        "climb it, counted by a camera that sees in red light. Before the pass was built, buckets were carried over the dam "
        "by schoolchildren, who counted by weight and were not far wrong.",
    ),
]


def _research(rng: random.Random) -> tuple[str, Steps]:
    """A question for which pages are searched, opened and noted, and the notes end in a text with quotations."""
    address = {title: f"https://library.example/{rng.getrandbits(40):010x}" for title, _ in _PAGES}
    found = [
        {"title": t, "url": address[t], "snippet": text[:160].rsplit(" ", 1)[0] + " ..."} for t, text in _PAGES
    ]  # fmt: skip
    order = rng.sample(range(len(_PAGES)), 3)
    steps: Steps = [
        ("What has changed in the estuary since the sluice was opened? Quote your sources.",
         '{"action": "search", "query": "estuary changes since sluice opened"}'),
    ]  # fmt: skip
    received, notes = json.dumps(found, indent=1), []
    for place in order:
        title, text = _PAGES[place]
        steps.append((received, json.dumps({"action": "open", "url": address[title]})))
        quote = text.split(". ")[1] + "."
        notes.append({"url": address[title], "quote": quote})
        steps.append(
            (f"# {title}\n\n{text}\n\n" + "\n\n".join(f"Next: {t}\n{address[t]}\n{x}" for t, x in _PAGES if t != title),
             json.dumps({"action": "note", **notes[-1]}))
        )  # fmt: skip
        received = json.dumps({"noted": len(notes), "notes": notes})
    cited = " ".join(f'"{note["quote"]}" ({note["url"]})' for note in notes)
    steps.append((received, json.dumps({"action": "finish", "report": cited})))
    system = (
        'You research questions on the web. Every message of yours is one JSON object with an "action": search (query), open '
        "(url), note (url and a literal quote from the page), or finish (a report that quotes your notes and names their "
        "addresses)."
    )
    return system, steps


_TICKET = """interface Props {
  ticket: Ticket;
  onClose: (id: string) => void;
}

export function TicketRow({ ticket, onClose }: Props) {
  const [open, setOpen] = useState(false);
  const age = daysSince(ticket.createdAt);

  return (
    <li className={age > 14 ? "row stale" : "row"}>
      <button onClick={() => setOpen(!open)}>{ticket.subject}</button>
      <span className="age">{age} days</span>
      {open && (
        <div className="body">
          <p>{ticket.body}</p>
          <button onClick={() => onClose(ticket.id)}>Close ticket</button>
        </div>
      )}
    </li>
  );
}
"""


def _editor(rng: random.Random) -> tuple[str, Steps]:
    """A coding agent that views a file with line numbers, replaces parts of it, sees a type error and mends it."""
    state = rng.choice(["pending", "archived", "muted"])
    numbered = "\n".join(f"{i:4}\t{line}" for i, line in enumerate(_TICKET.splitlines(), 1))
    old = "          <button onClick={() => onClose(ticket.id)}>Close ticket</button>\n"
    new = (
        old
        + f'          <button onClick={{() => onChange({{ ...ticket, state: "{state}" }})}}>Set to {state}</button>\n'
    )
    numbered_new = "\n".join(f"{i:4}\t{line}" for i, line in enumerate(_TICKET.replace(old, new).splitlines(), 1))
    test = (
        'test("closes a ticket", async () => {\n  const onClose = vi.fn();\n'
        "  render(<TicketRow ticket={ticket} onClose={onClose} />);\n"
        '  await userEvent.click(screen.getByText(ticket.subject));\n  await userEvent.click(screen.getByText("Close ticket"));\n'
        "  expect(onClose).toHaveBeenCalledWith(ticket.id);\n});\n"
    )
    added = (
        test.replace("closes a ticket", f"sets a ticket to {state}")
        .replace("onClose={onClose}", "onClose={vi.fn()} onChange={onChange}")
        .replace("const onClose", "const onChange")
        .replace("Close ticket", f"Set to {state}")
        .replace("expect(onClose).toHaveBeenCalledWith(ticket.id)",
                 f'expect(onChange).toHaveBeenCalledWith({{ ...ticket, state: "{state}" }})')
    )  # fmt: skip
    error = (
        "src/TicketRow.tsx(18,35): error TS2304: Cannot find name 'onChange'.\nsrc/TicketRow.test.tsx(31,66): error TS2322: "
        "Property 'onChange' does not exist on type 'IntrinsicAttributes & Props'.\n2 errors"
    )

    def replace(path: str, before: str, after: str) -> str:
        return f'<edit path="{path}">\n<old>\n{before}</old>\n<new>\n{after}</new>\n</edit>'

    props = "  onClose: (id: string) => void;\n"
    head = "export function TicketRow({ ticket, onClose }: Props) {\n"
    steps = [
        (f'Add a button "Set to {state}" under "Close ticket" in TicketRow, which reports the changed ticket to the parent. Add a test.',
         '<view path="src/TicketRow.tsx"/>'),
        (numbered, replace("src/TicketRow.tsx", old, new)),
        (f"edited src/TicketRow.tsx, 1 place; the file is now:\n{numbered_new}", '<view path="src/TicketRow.test.tsx"/>'),
        ("\n".join(f"{i:4}\t{line}" for i, line in enumerate(test.splitlines(), 20)),
         replace("src/TicketRow.test.tsx", test, test + "\n" + added) + '\n<run command="npx tsc --noEmit"/>'),
        ("edited src/TicketRow.test.tsx, 1 place\n" + error,
         "The property is not declared yet.\n"
         + replace("src/TicketRow.tsx", props, props + "  onChange: (ticket: Ticket) => void;\n") + "\n"
         + replace("src/TicketRow.tsx", head, head.replace("onClose }", "onClose, onChange }"))
         + '\n<run command="npx tsc --noEmit"/>'),
    ]  # fmt: skip
    system = (
        'You edit a code base. Tools: <view path="..."/>, <run command="..."/>, and <edit path="..."> with an <old> part that '
        "stands in the file exactly once, to the letter and without line numbers, and a <new> part to put in its place."
    )
    return system, steps


def cases() -> Iterator[Case]:
    for name, make, prefix in (
        ("shell", _shell, ""),
        ("tables", _tables, "<"),
        ("research", _research, '{"action": "'),
        ("editor", _editor, "<"),
    ):
        system, steps = make(random.Random(f"heldout {name}"))
        yield from loop(name, system, steps, prefix=prefix)
