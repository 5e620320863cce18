// A value from the API with its loading and error states. It is loaded again when the query changes, and periodically
// while the page is visible.

export interface Resource<T> {
  readonly value: T | undefined;
  readonly error: string;
  readonly isLoading: boolean;
  refresh(): Promise<void>;
}

/** Call it while a component is created. The resource ends with the component. */
export function resource<T>(load: (signal: AbortSignal) => Promise<T>, everyMs?: number): Resource<T> {
  let value = $state.raw<T | undefined>();
  let error = $state("");
  let isLoading = $state(true);
  let running: AbortController | undefined;
  let isAsked = false;

  async function ask(question: (signal: AbortSignal) => Promise<T>): Promise<void> {
    running?.abort();
    const own = (running = new AbortController());
    isAsked = true;
    try {
      const answer = await question(own.signal);
      if (own.signal.aborted) return;
      value = answer;
      error = "";
    } catch (problem) {
      if (own.signal.aborted) return;
      error = problem instanceof Error ? problem.message : String(problem);
    }
    isLoading = false;
    isAsked = false;
  }

  $effect(() => {
    isLoading = true;
    // Svelte tracks the values read before the first `await`. A change of them loads again.
    void ask(load);
    // Skips a period while a request is pending. Otherwise a slow answer would be replaced before it arrives.
    const timer = everyMs
      ? setInterval(() => {
          if (!document.hidden && !isAsked) void ask(load);
        }, everyMs)
      : undefined;
    return () => {
      clearInterval(timer);
      running?.abort();
    };
  });

  return {
    get value() {
      return value;
    },
    get error() {
      return error;
    },
    get isLoading() {
      return isLoading;
    },
    refresh: () => ask(load),
  };
}
