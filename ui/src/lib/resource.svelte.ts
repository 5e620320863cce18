// Something that the API gives: its value, that it is still coming, or why it did not come. Asked for again when what the
// question depends on changes, and every so often while the page can be seen.

export interface Resource<T> {
  readonly value: T | undefined;
  readonly error: string;
  readonly isLoading: boolean;
  refresh(): Promise<void>;
}

/** To be called while a component is made; it ends with it. */
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
    // What is read before the first `await` in it is what it depends on.
    void ask(load);
    // An answer that takes longer than that is waited for: asked anew each time, it would never come.
    const timer = everyMs ? setInterval(() => { if (!document.hidden && !isAsked) void ask(load); }, everyMs) : undefined;
    return () => {
      clearInterval(timer);
      running?.abort();
    };
  });

  return {
    get value() { return value; },
    get error() { return error; },
    get isLoading() { return isLoading; },
    refresh: () => ask(load),
  };
}
