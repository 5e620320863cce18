// What a list is filtered by, in its address: who looks at one of its lines and goes back, loads the page again or sends the address to somebody has the same list.
// Who goes to the page anew has all of it.
import { untrack } from "svelte";
import { router } from "./router.svelte";
import { settled } from "./settled.svelte";

export interface Filters<T> {
  /** As it is typed. */
  readonly typed: T;
  /** When the typing rests. */
  readonly value: T;
}

/** To be called while a component is made. What is as it is here stands in no address. */
export function filters<T extends Record<string, string>>(none: T): Filters<T> {
  const there = (): T => Object.fromEntries(Object.entries(none).map(([name, value]) => [name, router.query.get(name) ?? value])) as T;
  const typed = $state(there());
  let noted = JSON.stringify(typed);
  let value = $state.raw(there());
  const rested = settled(() => JSON.stringify(typed));

  $effect(() => {
    const text = rested.value;
    untrack(() => { if (text !== noted && text === JSON.stringify(typed)) take(JSON.parse(text) as T); });
  });
  // Another address of the same page.
  $effect(() => {
    const wanted = there();
    untrack(() => {
      if (JSON.stringify(wanted) === noted) return;
      Object.assign(typed, wanted);
      take(wanted);
    });
  });

  function take(next: T): void {
    noted = JSON.stringify(next);
    value = next;
    router.note(Object.fromEntries(Object.entries(next).map(([name, one]) => [name, one === none[name] ? "" : one])));
  }

  return { get typed() { return typed; }, get value() { return value; } };
}
