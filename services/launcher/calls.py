"""Text for people: where the doors are, three calls to copy, and what a request cost. Pure."""

import json
import shlex
from collections.abc import Sequence

from services.client.values import Receipt
from services.domain.miss_reason import MissReason
from services.launcher.ports import Ports

METHOD = "protos.gateway.v1.GenerateService/Generate"
EXAMPLE_PROMPT = "Why is the sky blue? Answer in two sentences."
EXAMPLE_TOKENS = 96


def endpoint_lines(
    host: str, ports: Ports, num_workers: int, *, redis: str, has_tls: bool = False
) -> list[str]:
    """Return one line per door: name and address."""
    last = ports.worker(num_workers - 1)
    workers = f"{ports.worker(0)}" if num_workers == 1 else f"{ports.worker(0)}-{last}"
    scheme = "https" if has_tls else "http"
    by_certificate = f"   gRPC by certificate {host}:{ports.certificate}" if has_tls else ""
    return [
        f"gateway    gRPC {host}:{ports.gateway}   HTTP {scheme}://{host}:{ports.http}/v1{by_certificate}"
        f"   admin 127.0.0.1:{ports.admin}",
        f"scheduler  gRPC 127.0.0.1:{ports.scheduler}   kvmanager 127.0.0.1:{ports.kvmanager}   "
        f"workers 127.0.0.1:{workers}   {redis}",
        f"metrics    {scheme}://127.0.0.1:{ports.gateway_probe()}/metrics (gateway), "
        f"{ports.scheduler_probe()}, {ports.kvmanager_probe()}, {ports.worker_probe(0)}",
    ]


def example_calls(program: str, model: str, ports: Ports, *, ca: str | None = None) -> list[tuple[str, str]]:
    """Return a title and a command line each, to be pasted into a shell.

    Args:
        ca: File of the authority, where the doors have TLS.
    """
    target = f"127.0.0.1:{ports.gateway}"
    message = {"role": "user", "content": EXAMPLE_PROMPT}
    request = {
        "model": model,
        "chat": {"messages": [message]},
        "max_output_tokens": EXAMPLE_TOKENS,
    }
    body = {"model": model, "messages": [message], "max_tokens": EXAMPLE_TOKENS, "stream": True}
    own = [program, "generate", "--chat", "--model", model, "--max-tokens", str(EXAMPLE_TOKENS)]
    if ports.offset:
        own += ["--target", target]
    data = shlex.quote(json.dumps(request))
    grpcurl, buf, curl, scheme = "-plaintext", "--http2-prior-knowledge", "", "http"
    if ca is not None:
        own += ["--ca-cert", ca]
        file = shlex.quote(ca)
        grpcurl, buf, curl, scheme = f"-cacert {file}", f"--cacert {file}", f"--cacert {file} ", "https"
    return [
        ("our own client", shlex.join([*own, EXAMPLE_PROMPT])),
        (
            "gRPC by reflection, with grpcurl or with buf",
            f"grpcurl {grpcurl} -d {data} {target} {METHOD}\n"
            f"buf curl --protocol grpc {buf} -d {data} {scheme}://{target}/{METHOD}",
        ),
        (
            "HTTP, as the OpenAI API",
            f"curl -N {curl}{scheme}://127.0.0.1:{ports.http}/v1/chat/completions "
            f"-H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}",
        ),
    ]


_MISSES = {
    MissReason.NEVER_SEEN: "not seen before",
    MissReason.IN_FLIGHT: "being computed for an earlier request",
    MissReason.EVICTED_FOR_SPACE: "evicted, its pages were needed",
    MissReason.EVICTED_BY_POLICY: "evicted by the policy",
    MissReason.WORKER_GONE: "gone with its worker",
    MissReason.ON_ANOTHER_WORKER: "cached on another worker",
    MissReason.OWN_SALT: "a salt of your own",
    MissReason.OPT_OUT: "you opted out",
    MissReason.FIRST_DIFFERENCE: "differs from an earlier prompt here",
    MissReason.UNKNOWN: "nobody could say why in time",
}
"""Why a prompt was not cached from some token on, in words."""


def receipt_lines(receipt: Receipt) -> list[str]:
    """Say what a request cost."""
    usage = receipt.usage
    rate = 1000 / receipt.tpot_ms if receipt.tpot_ms > 0 else 0.0
    retried = f", {receipt.attempts} attempts" if receipt.attempts > 1 else ""
    miss = _MISSES.get(receipt.miss_reason)
    uncached = f"; from token {receipt.first_miss_token} on: {miss}" if miss else ""
    preempted = f", preempted {receipt.preemptions} times" if receipt.preemptions else ""
    return [
        f"{usage.prompt_tokens} prompt tokens ({usage.cached_tokens} cached{uncached}), "
        f"{usage.output_tokens} output tokens",
        f"first token after {receipt.ttft_ms:.0f} ms, then {rate:.0f} tokens/s (queue "
        f"{receipt.queue_ms:.0f}, prefill {receipt.prefill_ms:.0f}, decode {receipt.decode_ms:.0f} ms)",
        f"{receipt.worker}{retried}{preempted}, {receipt.page_seconds:.1f} page-seconds, "
        f"request {receipt.request_id}",
    ]


def indent(lines: Sequence[str], by: str = "  ") -> str:
    return "\n".join(by + part for line in lines for part in line.split("\n"))
