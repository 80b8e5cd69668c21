"""What a report says in words, the same in every form of it."""

from __future__ import annotations

from collections.abc import Iterator

from ..planner.baselines import system_of
from .numbers import bytes_text, count_text, graphs_text, percent_text, time_text
from .values import BillFacts, Coverage, GraphFacts, Proof, Report

MIN_GAIN = 0.02
"""Of the default's time: what saves less is within the errors of most costs."""


def verdict(report: Report) -> str:
    """Say what the plan gains over the default, and plainly when that is little."""
    default, plan = report.default, report.plan
    if default is None:
        waste = percent_text(report.time_waste)
        return f"The plan's padding takes {waste} more than graphs of every shape would."
    gain, name = default.saved_share, default.name
    what = f"the time of {name}"
    graphs = f"{graphs_text(plan.num_graphs)} instead of {default.num_graphs}"
    if gain < 0:
        loss = percent_text(plan.seconds / default.seconds - 1)
        return f"The plan takes {loss} more than {name} ({graphs}): keep the default."
    if gain < MIN_GAIN:
        return (
            f"The plan saves {percent_text(gain)} of {what}, less than "
            f"{percent_text(MIN_GAIN)} ({graphs}): hardly worth a plan of its own."
        )
    return f"The plan saves {percent_text(gain)} of {what}, with {graphs}."


def step_sentence(report: Report) -> str | None:
    """Say what a decode step takes, beside the default."""
    default, step_s = report.default, report.plan.decode.step_s
    if default is None or not step_s:
        return None
    return (
        f"A decode step, and so the next token of its requests, takes {time_text(step_s)} on "
        f"average instead of {time_text(default.decode.step_s)}."
    )


def where_the_time_goes(report: Report) -> Iterator[str]:
    """Say how much of each phase's time is padding."""
    for phase in report.phases:
        if not phase.num_steps:
            yield f"{phase.phase.capitalize()}: nothing is known of its steps."
            continue
        yield (
            f"{phase.phase.capitalize()}: {count_text(phase.num_steps)} steps in "
            f"{graphs_text(phase.num_graphs)} take {time_text(phase.seconds)}, "
            f"{percent_text(phase.time_waste)} more than in graphs of exactly their shapes; "
            f"beside every 100 real tokens run {100 * phase.waste:.0f} of padding."
        )


def who_pays(report: Report) -> str:
    """Say how requests share the waste of prompts."""
    by_percent = {point.percent: point for point in report.wastes}
    half, tenth, worst = (by_percent[percent] for percent in (50, 90, 100))
    text = (
        f"Alone, half of the prompts waste at most {percent_text(half.plan)} of their own time, "
        f"nine in ten at most {percent_text(tenth.plan)}, the worst {percent_text(worst.plan)}"
    )
    if half.default is None or tenth.default is None or report.default is None:
        return f"{text}."
    return (
        f"{text}; with {report.default.name} half waste up to {percent_text(half.default)}, "
        f"nine in ten up to {percent_text(tenth.default)}."
    )


def graph_sentence(graph: GraphFacts) -> str:
    """Say what one graph is worth."""
    name, share = graph_name(graph).capitalize(), percent_text(graph.step_share)
    serves = f"{name} serves {share} of the {graph.phase} steps"
    if graph.longer_share is None or graph.saved_s is None:
        return f"{serves}; no other holds the largest."
    less = f"{time_text(graph.compile_s)} less of compiling"
    if graph.saved_s <= 0:
        return f"{serves}; without it nothing takes longer and there are {less}."
    return (
        f"{serves}; without it all takes {percent_text(graph.longer_share)} longer and there are "
        f"{less}."
    )


def graph_name(graph: GraphFacts) -> str:
    """Name a graph by its shape."""
    if graph.phase == "prefill":
        return f"prefill {count_text(graph.size)}"
    return f"decode {graph.size} x {count_text(graph.context_len)}"


def notable_graphs(report: Report) -> Iterator[GraphFacts]:
    """Return the graph that is worth most in each phase, and the one that is worth least."""
    for phase in ("prefill", "decode"):
        rated = [g for g in report.graphs if g.phase == phase and g.saved_s is not None]
        if rated:
            best = max(rated, key=lambda graph: graph.saved_s or 0.0)
            least = min(rated, key=lambda graph: graph.saved_s or 0.0)
            yield best
            if least is not best:
                yield least


def bill_sentence(report: Report) -> str:
    """Say what having the plan costs, and how far that is from the budget."""
    bill, budget = report.bill, report.budget
    workers = f"{budget.workers} worker{'s' if budget.workers > 1 else ''}"
    text = (
        f"{graphs_text(bill.num_graphs)} ({bill.num_prefill} prefill, {bill.num_decode} decode) "
        f"compile for {time_text(bill.compile_s)}, with {workers} in {time_text(bill.wall_s)}, and "
        f"take {bytes_text(bill.num_bytes)}"
    )
    allowed = []
    if budget.wall_s is not None:
        allowed.append(time_text(budget.wall_s))
    if budget.num_bytes is not None:
        allowed.append(bytes_text(budget.num_bytes))
    if budget.num_graphs is not None:
        allowed.append(graphs_text(int(budget.num_graphs)))
    limit = f"allowed are {', '.join(allowed)}" if allowed else "no limit was set"
    return f"{text}; {limit}. The plan is to serve for {time_text(budget.horizon_s)}."


def next_on_the_curve(report: Report) -> str:
    """Say what a few graphs less or more would change, where the curve has such points."""
    said = []
    here = chosen_on_curve(report)
    fewer = [point for point in report.curve if point.num_graphs < here.num_graphs]
    more = [point for point in report.curve if point.num_graphs > here.num_graphs]
    if fewer:
        said.append(_difference(report, here, max(fewer, key=lambda point: point.num_graphs)))
    if more:
        said.append(_difference(report, here, min(more, key=lambda point: point.num_graphs)))
    return " ".join(said) or "The curve has no other point."


def ready_sentence(report: Report) -> str:
    """Say when an engine can start, and what it lacks until all graphs are there."""
    first, last = report.warm_up[0], report.warm_up[-1]
    slower = percent_text(first.seconds / last.seconds - 1)
    text = f"An engine can serve after {time_text(first.wall_s)}, with the two limit graphs"
    near = next(point for point in report.warm_up if point.seconds <= last.seconds * 1.1)
    at = report.warm_up.index(near) + 2
    if near is first:
        return f"{text}; all others save less than 10 %."
    return (
        f"{text}, and takes {slower} longer then; after {time_text(near.wall_s)}, with "
        f"{graphs_text(at)}, it is within 10 % of the whole plan ({time_text(last.wall_s)})."
    )


def coverage_sentence(found: Coverage) -> str:
    """Say whether every shape of a phase has a graph."""
    what = "rows" if found.phase == "prefill" else "requests"
    shapes = (
        f"{found.phase.capitalize()}: 1 to {count_text(found.max_size)} {what} with contexts of 1 "
        f"to {count_text(found.max_context_len)} tokens are {count_text(found.num_shapes)} shapes"
    )
    idle = f" Nothing is ever sent to {', '.join(found.idle)}." if found.idle else ""
    if found.is_proven:
        return f"{shapes}; every one has a graph.{idle}"
    assert found.missing is not None
    size, context_len = found.missing
    return (
        f"{shapes}; {count_text(found.num_shapes - found.num_covered)} have NO graph, the first is "
        f"{count_text(size)} {what} with {count_text(context_len)} tokens.{idle}"
    )


def proof_sentences(report: Report) -> Iterator[str]:
    """Say how sure it is that no better plan exists."""
    proof = report.proof
    yield f"Prefill: {_prefill_proof(proof)}"
    yield f"Decode: {_decode_proof(proof)}"
    if proof.is_cut_short:
        yield "A clock ended the search for decode graphs: another machine may find others."
    yield "How many graphs of each phase: every pair on both curves was weighed."
    yield (
        "Faster steps change which steps there are: planning again with the plan's own times "
        f"changed the time by {percent_text(proof.changed_share)}."
    )


def _prefill_proof(proof: Proof) -> str:
    rule, among = proof.rules[0], count_text(proof.weighed.prefill)
    if rule is not None:
        return f"as spaced by {system_of(rule)}. No set that was found beats it."
    if proof.prefill == "exact":
        return f"exact. Of {among} sizes no other set of as many takes less for these steps."
    return (
        "searched. How each prompt runs in these sizes is exact; the sizes are the best of a "
        f"local search among {among}, without a bound."
    )


def _decode_proof(proof: Proof) -> str:
    rule, gap, among = proof.rules[1], proof.decode_gap, count_text(proof.weighed.decode)
    if rule is not None:
        return f"as spaced by {system_of(rule)}. No set that was found beats it."
    if not proof.knows_decode:
        return "powers of two, as nothing is known of its steps."
    if gap is None:
        found = f"the best {proof.decode_shape} set that was found among {among} graphs"
        return f"{found}, without a bound."
    if gap == 0:
        return f"exact. Of {among} graphs no other set of as many takes less for these steps."
    return (
        f"within {percent_text(gap)} of the best set of as many of {among} graphs, by a proven "
        "bound."
    )


def cost_sentences(report: Report) -> Iterator[str]:
    """Say which costs were used and how far off they are."""
    costs = report.costs
    if costs.error_share is None:
        yield f"Seconds are {costs.source}; nothing was measured, so their error is not known."
    else:
        error = percent_text(costs.error_share)
        yield f"Seconds are {costs.source}, {error} off the measured steps on average."
    if costs.left_out_error_share is not None:
        yield f"A step that the fit has not seen is {percent_text(costs.left_out_error_share)} off."
    yield from (_sentence(note) for note in costs.notes)


def prefix_sentence(report: Report) -> str:
    """Say what prefill kernels are taken to pay for cached tokens."""
    words = {
        "exact": "the cached tokens that are there",
        "bucketed": "the next power of two of cached tokens",
        "max": "all the context that a graph has room for",
    }
    return f"Planned with {report.costs.prefix}: prefill steps read {words[report.costs.prefix]}."


def chosen_on_curve(report: Report) -> BillFacts:
    """Return the curve's point of the plan: its decode set was improved after it was chosen."""
    counts = (report.bill.num_prefill, report.bill.num_decode)
    same = [one for one in report.curve if (one.num_prefill, one.num_decode) == counts]
    return same[0] if same else report.bill


def _difference(report: Report, bill: BillFacts, point: BillFacts) -> str:
    change = point.seconds - bill.seconds
    way = "more" if change > 0 else "less"
    compile_s = point.compile_s - bill.compile_s
    return (
        f"With {graphs_text(point.num_graphs)} the traffic takes {time_text(abs(change))} "
        f"{way} ({percent_text(abs(change) / bill.seconds)}), and compiling "
        f"{time_text(abs(compile_s))} {'more' if compile_s > 0 else 'less'}."
    )


def _sentence(text: str) -> str:
    """Write a note as a sentence."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
