// A draft of what the server has. It follows the server until somebody types; from then on it is theirs, and it is told when what it was
// made from has been changed by somebody else. Who leaves it unsaved is asked first.
import { untrack } from "svelte";
import { Refused, tagOf } from "../api/request";
import type { Resource } from "./resource.svelte";
import { guard } from "./unsaved.svelte";

/** In the form of a new one the first of them is chosen by itself. */
const CHOSEN = ["type", "connector"];

export interface Following<V> {
  /** Changed meanwhile, and the draft is kept. */
  readonly isStale: boolean;
  /** The draft becomes what the server has. */
  reload(): Promise<void>;
  /** Saves for what the draft was made from; `isOver`: for what is there now. */
  save(put: (ifMatch: string | undefined) => Promise<V>, isOver?: boolean): Promise<void>;
}

/** To be called while a component is made. `load` makes the draft, `draft` gives it. */
export function following<V extends object>(one: Resource<V | null>, load: (value: V) => void, draft: () => unknown): Following<V> {
  let base: V | undefined;
  const typed = () => JSON.stringify(draft(), (key, value: unknown) => (!base && CHOSEN.includes(key) ? undefined : value));
  let loaded = typed();
  let isSaving = false;
  let isStale = $state(false);

  function take(value: V) {
    base = value;
    load(value);
    loaded = typed();
    isStale = false;
  }

  /** What was typed since is not in it, and stays: it is as if it had been typed into what is there now. */
  function saved(value: V, sent: string) {
    if (typed() === sent) return take(value);
    base = value;
    loaded = sent;
    isStale = false;
  }

  guard(() => typed() !== loaded);
  $effect(() => {
    const value = one.value;
    if (!value || isSaving) return;
    untrack(() => {
      if (base && tagOf(value) === tagOf(base)) isStale = false;
      else if (!base || typed() === loaded) take(value);
      else isStale = true;
    });
  });

  return {
    get isStale() { return isStale; },
    async reload() {
      await one.refresh();
      if (one.value) take(one.value);
    },
    async save(put, isOver = false) {
      isSaving = true;
      const sent = typed();
      try {
        saved(await put(isOver ? "*" : tagOf(base)), sent);
      } catch (error) {
        isSaving = false;
        if (error instanceof Refused && error.status === 412) await one.refresh();
        throw error;
      }
      isSaving = false;
      await one.refresh();
    },
  };
}
