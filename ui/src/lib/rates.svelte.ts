// Computes how fast counters grow between two readings.

export function rates(get: () => [string, number][] | undefined): { of: (id: string) => number | undefined } {
  let before = new Map<string, number>();
  let at = 0;
  let now = $state.raw(new Map<string, number>());
  $effect(() => {
    const counts = get();
    if (!counts) return;
    const seconds = (Date.now() - at) / 1000;
    const next = new Map<string, number>();
    for (const [id, count] of counts) {
      const last = before.get(id);
      // A counter that was reset starts at zero again.
      if (last !== undefined && at > 0 && seconds > 0.2) next.set(id, Math.max(0, count - last) / seconds);
    }
    now = next;
    before = new Map(counts);
    at = Date.now();
  });
  return { of: (id) => now.get(id) };
}
