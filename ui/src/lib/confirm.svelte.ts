// Asks for confirmation before something is deleted or discarded.

export interface Question {
  title: string;
  text: string;
  /** Caption of the button. */
  action: string;
  /** A name that the user must type first. For actions that cannot be undone. */
  name?: string;
}

class Confirm {
  question = $state.raw<Question | undefined>();
  #answer: ((isSure: boolean) => void) | undefined;

  ask(question: Question): Promise<boolean> {
    this.answer(false);
    this.question = question;
    return new Promise((resolve) => {
      this.#answer = resolve;
    });
  }

  answer(isSure: boolean): void {
    this.question = undefined;
    this.#answer?.(isSure);
    this.#answer = undefined;
  }
}

export const confirm = new Confirm();
