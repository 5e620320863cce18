// Asks before something is destroyed.

export interface Question {
  title: string;
  text: string;
  /** What the button says. */
  action: string;
  /** What has to be typed first, for what cannot be undone. */
  name?: string;
}

class Confirm {
  question = $state.raw<Question | undefined>();
  #answer: ((isSure: boolean) => void) | undefined;

  ask(question: Question): Promise<boolean> {
    this.answer(false);
    this.question = question;
    return new Promise((resolve) => { this.#answer = resolve; });
  }

  answer(isSure: boolean): void {
    this.question = undefined;
    this.#answer?.(isSure);
    this.#answer = undefined;
  }
}

export const confirm = new Confirm();
