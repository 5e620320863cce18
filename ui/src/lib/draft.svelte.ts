// A draft of an object on the server. Until the user types, it follows the server. Afterwards the draft stays, and
// `isStale` says that the object has changed on the server. Leaving with unsaved changes asks first.
import { untrack } from "svelte";
import { RequestError, tagOf } from "../api/request";
import type { Resource } from "./resource.svelte";
import { guard } from "./unsaved.svelte";

/** The form of a new object selects the first entry of these fields. */
const CHOSEN = ["type", "connector"];

export interface ServerDraft<V> {
  /** The object has changed on the server since the draft was loaded. */
  readonly isStale: boolean;
  /** Replaces the draft by the server's version. */
  reload(): Promise<void>;
  /** Saves against the version that the draft was loaded from. With `isOver`, saves against the current version. */
  save(put: (ifMatch: string | undefined) => Promise<V>, isOver?: boolean): Promise<void>;
}

/** Call it while a component is created. `load` fills the draft, `draft` returns it. */
export function serverDraft<V extends object>(
  one: Resource<V | null>,
  load: (value: V) => void,
  draft: () => unknown,
): ServerDraft<V> {
  let base: V | undefined;
  const typed = () =>
    JSON.stringify(draft(), (key, value: unknown) => (!base && CHOSEN.includes(key) ? undefined : value));
  let loaded = typed();
  let isSaving = false;
  let isStale = $state(false);

  function take(value: V) {
    base = value;
    load(value);
    loaded = typed();
    isStale = false;
  }

  /** Input that arrived while saving stays in the draft, as a change of the saved version. */
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
    get isStale() {
      return isStale;
    },
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
        if (error instanceof RequestError && error.status === 412) await one.refresh();
        throw error;
      }
      isSaving = false;
      await one.refresh();
    },
  };
}
