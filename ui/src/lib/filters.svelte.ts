// The filters of a list, stored in the address: going back, reloading and sharing a link keep them. The navigation link
// opens the page without filters.
import { untrack } from "svelte";
import { router } from "./router.svelte";
import { debounced } from "./debounced.svelte";

export interface Filters<T> {
  /** The text in the fields. */
  readonly typed: T;
  /** The text after the user has stopped typing. */
  readonly value: T;
}

/** Call it while a component is created. Values equal to `none` are left out of the address. */
export function filters<T extends Record<string, string>>(none: T): Filters<T> {
  const there = (): T =>
    Object.fromEntries(Object.entries(none).map(([name, value]) => [name, router.query.get(name) ?? value])) as T;
  const typed = $state(there());
  let noted = JSON.stringify(typed);
  let value = $state.raw(there());
  const rested = debounced(() => JSON.stringify(typed));

  $effect(() => {
    const text = rested.value;
    untrack(() => {
      if (text !== noted && text === JSON.stringify(typed)) take(JSON.parse(text) as T);
    });
  });
  // The address changed, but the page stayed the same.
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
    router.setParameters(
      Object.fromEntries(Object.entries(next).map(([name, one]) => [name, one === none[name] ? "" : one])),
    );
  }

  return {
    get typed() {
      return typed;
    },
    get value() {
      return value;
    },
  };
}
