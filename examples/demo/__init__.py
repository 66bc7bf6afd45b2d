"""The demo: nodes in processes of their own, crashes among them, and accounts that add up.

__main__.py           the entry: nothing but the exit status
commandline.py        options, signals, the directory
story.py              what happens when
request_act.py        its first part: requests, a kill, a return
mail_act.py           its second part: durable mail, both nodes killed in turn
cells_act.py          its third part: cells of five domains, cores killed and restarted
services_act.py       its fourth part: services on four nodes, one of them killed
moleculer_act.py      the end of that part: a node of Moleculer over NATS
flows_act.py          its fifth part: payments agreed on by flows, both banks killed in turn
clearing_act.py       its sixth part: a job on Spark, whose node is killed
stage.py              the nodes of a story, and what is seen of them
processes.py          child processes as the story sees them
node.py               the program of a child process
pipe.py               its end of the pipes to the story
traffic.py            the load one node puts on another, and its accounts
payments.py           the payments, bookings and receipts of nodes with mail
cells_node.py         the cores and satellites of cells
cells_traffic.py      the calls and publications of one of them
cells_journal.py      what satellites write down of each message
services_offered.py   the services
services_node.py      the nodes that have them
services_traffic.py   the orders and streams of one of them
services_books.py     a middleware that writes down every call and event
services_journal.py   what it writes
javascript.py         what a node of Moleculer needs
moleculer_node.js     that node
moleculer_meeting.py  the node that meets it
flows_bank.py         the flows of a bank, and the bank
clearing.toml         the job that clears payments
clearing.py           its functions, and the payments it is given
clearing_house.py     the node that runs it
clearing_customer.py  the node that posts payments to it
tally.py              a counter that outlives a killed process
records.py            what node processes and the story tell each other
board.py              the reports of a run, gathered second by second
books.py              the databases of both nodes, read from outside
screen.py             tables on a terminal or in a pipe
tables.py             what boards and reconciliations look like
verdict.py            the reconciliation of requests: what must add up
mail_verdict.py       the reconciliation of mail
cells_verdict.py      the reconciliation of cells
services_verdict.py   the reconciliation of services
flows_verdict.py      the reconciliation of flows
clearing_verdict.py   the reconciliation of clearing
"""
