// Repeats the errors of failed tests at the very end, because CI services often show only the last lines of a log.
import type { FullConfig, Reporter, Suite } from "@playwright/test/reporter";
import { stripVTControlCharacters } from "node:util";

const LINES = 12;

export default class Failures implements Reporter {
  private suite: Suite | undefined;

  onBegin(_: FullConfig, suite: Suite): void {
    this.suite = suite;
  }

  onExit(): Promise<void> {
    for (const test of this.suite?.allTests() ?? []) {
      if (test.ok()) continue;
      for (const { message } of test.results.flatMap(({ errors }) => errors)) {
        const lines = stripVTControlCharacters(message ?? "").split("\n").filter((line) => line.trim() !== "");
        console.log([`${test.location.file}: ${test.title}`, ...lines.slice(0, LINES)].join("\n    "));
      }
    }
    return Promise.resolve();
  }
}
