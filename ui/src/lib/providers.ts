// Texts about authentication providers, sources of access rules, and their verdicts.
import type { AccessProvider, LoginStep, ProviderFigures, SourceDecision } from "../api/generated";

export interface StateText {
  text: string;
  kind: "good" | "bad" | "warn" | "";
}

export function stateOf(one: AccessProvider): StateText {
  switch (one.state) {
    case "local":
      return { text: "built in", kind: "" };
    case "not_asked":
      return { text: "not asked yet", kind: "" };
    case "working":
      return { text: "working", kind: "good" };
    case "failing":
      return { text: "failing", kind: "bad" };
  }
}

interface Figure {
  label: string;
  value: number;
  isBad: boolean;
}

/** Returns the counters that are always shown, and those that are not zero. */
export function figuresOf(figures: ProviderFigures, isSource: boolean): Figure[] {
  const always: Figure[] = [
    { label: "Questions", value: figures.questions, isBad: false },
    { label: isSource ? "Allowed" : "Admitted", value: figures.allowed, isBad: false },
    { label: "Refused", value: figures.denied, isBad: false },
    { label: isSource ? "Undecided" : "Unknown clients", value: figures.ignored, isBad: false },
    { label: "Failures", value: figures.failed, isBad: figures.failed > 0 },
    { label: "Time-outs", value: figures.timed_out, isBad: figures.timed_out > 0 },
  ];
  const rare: Figure[] = [
    { label: "Waiting now", value: figures.waiting, isBad: false },
    { label: "Shared answers", value: figures.shared, isBad: false },
    { label: "Denied, overload", value: figures.overloaded, isBad: true },
  ];
  return [...always, ...rare.filter((one) => one.value > 0)];
}

const ORIGINS: Record<string, string> = {
  asked: "asked now",
  cache: "from the cache",
  shared: "answer to an equal question",
  overloaded: "too many questions wait",
};

/** Describes where an answer comes from, and how long it took. */
export function originOf(step: { origin: string | null; took_ms: number | null }): string {
  const parts = [
    step.origin === null ? "" : (ORIGINS[step.origin] ?? step.origin),
    step.took_ms === null ? "" : milliseconds(step.took_ms),
  ];
  return parts.filter(Boolean).join(", ");
}

/** Formats a short time with the precision that a reader needs. */
export function milliseconds(ms: number): string {
  if (ms < 1) return "under 1 ms";
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms).toString()} ms`;
}

/** Formats a time limit. */
export const duration = (ms: number): string => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);

const VERDICTS: Record<LoginStep["verdict"], StateText> = {
  right: { text: "right", kind: "good" },
  wrong: { text: "wrong", kind: "bad" },
  rejected: { text: "rejected", kind: "bad" },
  unknown: { text: "unknown", kind: "" },
  failed: { text: "failed", kind: "bad" },
  not_applicable: { text: "skipped", kind: "" },
  not_asked: { text: "not asked", kind: "" },
};

export const verdictOf = (step: LoginStep): StateText => VERDICTS[step.verdict];

const DECISIONS: Record<string, StateText> = {
  allow: { text: "allow", kind: "good" },
  deny: { text: "deny", kind: "bad" },
  ignore: { text: "undecided", kind: "" },
  failed: { text: "failed", kind: "bad" },
  not_asked: { text: "not asked", kind: "" },
};

export const decisionOf = (source: SourceDecision): StateText =>
  DECISIONS[source.decision] ?? { text: source.decision, kind: "" };

/** Parses lines `name=value`. Returns the malformed line instead if there is one. */
export function pairsOf(text: string): Record<string, string> | { malformed: string } {
  const pairs: Record<string, string> = {};
  for (const line of text.split("\n").map((one) => one.trim())) {
    if (!line) continue;
    const at = line.indexOf("=");
    if (at < 1) return { malformed: line };
    pairs[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return pairs;
}
