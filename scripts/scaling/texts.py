"""The words of the live part of docs/scale.md."""

PINNED = """
Two `jaxgen serve` of 88 million random parameters in bfloat16 on {machine}, each pinned to a core (`taskset`), so
that each computes with one thread; 8 clients for each replica in a closed loop, prompts of 256 and answers of 60
tokens on average, as texts. *One replica alone*: the other waits. *No router*: the client sends to each in turn.
*SMG*: the same two behind SMG 1.13.0, round robin. Client and router have no cores of their own, but share those of
the replicas, so what the table shows two replicas to lose is also the processor time of client and router, beside
what they take from each other (caches, bandwidth of memory, clock). {rounds} rounds in turn, windows of {window} s
after {warmup} s: medians.

Two replicas in turn answer about 1.35 times as much as one alone, and the router takes another 7 % of that. They
keep only 1.2 of the two cores busy where one alone keeps 0.95 of its own: in turn each gets as many requests as the
other, whatever waits there, so that one is often idle while the other has most of the clients. That is an
explanation and was not measured. The windows are short: some 15 requests each; "-" is a first token that did not
come in the window."""

SLEEPING = """
Processes of jaxgen's server, scheduler and engine, whose device computes nothing: a step sleeps for as long as it
takes in the simulation above (0.07 s of decodes, 0.19 s of a full step), so that the device is the bound and not
the host; all share two cores of {machine}, with client and router. FastGen's load, 16 clients for each process, as
texts, behind SMG 1.13.0, round robin; *no router*: the client sends in turn; *virtual time*: the same load and
window simulated. Windows of {window} s after {warmup} s, once: few replicas answer few requests in it, so compare
with virtual time, which has the same window. The client begins anew for each row, at empty queues. A process has up
to {resident} MiB resident.

It shows that processes, sockets, streams and the router add up as the simulation says as long as the host has time
left; it shows nothing of GPUs, and no network."""
