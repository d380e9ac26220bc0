// Usage from the store: tokens per day, per agent and model, and the tools that were called.

import { get } from "./api.js";
import { empty, fill, h, problem } from "./dom.js";
import { brief, number, span } from "./format.js";

const DAY = 86_400_000;
const CHOICES = [7, 30, 90];
const dayName = new Intl.DateTimeFormat("en", { month: "short", day: "numeric", timeZone: "UTC" });

/** @param {{caller: any, query: URLSearchParams, signal: AbortSignal}} context */
export function usage({ caller, query, signal }) {
  const days = Math.min(366, Math.max(1, Number(query.get("days")) || 30));
  const body = h("div", { "aria-busy": "true" });
  const whose = caller.openToAll ? "of all sessions" : caller.operator ? "of all users" : "of your sessions";

  async function look() {
    try {
      const found = await get("usage", { days }, signal);
      fill(
        body,
        found.items.length
          ? tables(found, days)
          : empty("No usage in this period.", "Tokens are counted with every step that an agent commits."),
      );
    } catch (error) {
      if (!signal.aborted) fill(body, problem(error, look));
    }
    body.removeAttribute("aria-busy");
  }

  look();
  return h(
    "div.view",
    null,
    h(
      "div.view-head",
      null,
      h("h1", null, "Usage"),
      h("p.muted", null, `${whose}, days in UTC`),
      h(
        "nav.choices",
        { "aria-label": "Days" },
        CHOICES.map((each) =>
          h("a", { href: `#/usage?days=${each}`, "aria-current": each === days ? "true" : null }, `${each} days`),
        ),
      ),
    ),
    body,
  );
}

function tables({ items, since }, days) {
  const models = items.filter((each) => each.sourceType === "tokens");
  const tools = items.filter((each) => each.sourceType === "tool");
  const waits = items.filter((each) => each.sourceType === "client_tool_wait_ms");
  const own = items.filter((each) => each.sourceType === "custom");
  const total = models.reduce((sum, each) => add(sum, each), zero());
  return [
    h(
      "div.figures",
      null,
      figure("Tokens", total.total),
      figure("In", total.prompt, total.cached ? `${brief(total.cached)} cached` : ""),
      figure("Out", total.completion, total.reasoning ? `${brief(total.reasoning)} reasoning` : ""),
      figure("Model calls", total.calls, total.failures ? `${number(total.failures)} failed` : ""),
    ),
    chart(models, since, days),
    table(
      "Agents and models",
      ["Agent", "Model", "Calls", "Failed", "In", "Cached", "Out", "Reasoning", "Total"],
      grouped(models).map((each) => [
        each.agentType ?? "–",
        each.sourceName,
        each.calls,
        each.failures,
        each.prompt,
        each.cached,
        each.completion,
        each.reasoning,
        each.total,
      ]),
    ),
    tools.length
      ? table(
          "Tools",
          ["Agent", "Tool", "Calls", "Failed", "Mean time"],
          grouped(tools).map((each) => [
            each.agentType ?? "–",
            each.sourceName,
            each.calls,
            each.failures,
            each.calls ? span(each.amount / each.calls) : "–",
          ]),
        )
      : null,
    waits.length
      ? table(
          "Waiting for people and clients",
          ["Agent", "Tool", "Answers", "Mean wait"],
          grouped(waits).map((each) => [
            each.agentType ?? "–",
            each.sourceName,
            each.calls,
            each.calls ? span(each.amount / each.calls) : "–",
          ]),
        )
      : null,
    own.length
      ? table(
          "Counted by tools",
          ["Agent", "What", "Times", "Amount"],
          grouped(own).map((each) => [each.agentType ?? "–", each.sourceName, each.calls, each.amount]),
        )
      : null,
  ];
}

function zero() {
  return { calls: 0, failures: 0, amount: 0, prompt: 0, completion: 0, reasoning: 0, cached: 0, total: 0 };
}

function add(sum, { calls, failures, amount, tokens }) {
  const { prompt, completion, reasoning, cached, total } = tokens;
  const next = { calls, failures, amount, prompt, completion, reasoning, cached, total };
  return Object.fromEntries(Object.entries(next).map(([name, value]) => [name, sum[name] + value]));
}

/** Per agent and source, the largest first. */
function grouped(items) {
  const groups = new Map();
  for (const each of items) {
    const key = JSON.stringify([each.agentType, each.sourceName]);
    const { agentType, sourceName } = each;
    groups.set(key, { agentType, sourceName, ...add(groups.get(key) ?? zero(), each) });
  }
  return [...groups.values()].sort((one, other) => other.total - one.total || other.calls - one.calls);
}

function figure(label, value, more = "") {
  return h(
    "div.figure",
    null,
    h("span.muted", null, label),
    h("strong", { title: number(value) }, brief(value)),
    h("span.small.muted", null, more),
  );
}

/** Tokens per day; every day has its column, even without usage. */
function chart(models, since, days) {
  const perDay = Array.from({ length: days }, (_, place) => ({ day: since + place * DAY, sum: zero() }));
  for (const each of models) {
    const column = perDay[Math.round((each.day - since) / DAY)];
    if (column) column.sum = add(column.sum, each);
  }
  const most = Math.max(1, ...perDay.map(({ sum }) => sum.total));
  const columns = perDay.map(({ day, sum }) => {
    const label = `${dayName.format(day)}: ${number(sum.prompt)} in, ${number(sum.completion)} out`;
    const into = h("span.bar.in");
    const out = h("span.bar.out");
    into.style.height = `${(100 * sum.prompt) / most}%`;
    out.style.height = `${(100 * sum.completion) / most}%`;
    return h("li", { title: label, "aria-label": label }, out, into);
  });
  return h(
    "figure.chart",
    null,
    h(
      "figcaption",
      null,
      "Tokens per day",
      h("span.key.in", null, "in"),
      h("span.key.out", null, "out"),
      h("span.muted", null, `up to ${brief(most)}`),
    ),
    h("ol", null, columns),
    h(
      "div.axis.muted",
      null,
      h("span", null, dayName.format(since)),
      h("span", null, dayName.format(since + (days - 1) * DAY)),
    ),
  );
}

function table(title, heads, rows) {
  return h(
    "section.panel",
    null,
    h("h2", null, title),
    h(
      "div.scroll",
      { tabindex: "0" },
      h(
        "table",
        null,
        h(
          "thead",
          null,
          h(
            "tr",
            null,
            heads.map((head, place) =>
              h(typeof rows[0]?.[place] === "number" ? "th.number" : "th", { scope: "col" }, head),
            ),
          ),
        ),
        h(
          "tbody",
          null,
          rows.map((row) =>
            h(
              "tr",
              null,
              row.map((cell) => (typeof cell === "number" ? h("td.number", null, number(cell)) : h("td", null, cell))),
            ),
          ),
        ),
      ),
    ),
  );
}
