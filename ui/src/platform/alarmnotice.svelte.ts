// Announces new alarms of the tenant by sound or system notification, on every page, if the user has enabled it in this
// browser. Browsers slow down background tabs, so an announcement can take a minute there.
import { toasts } from "../lib/toasts.svelte";
import { alarms } from "./api";
import type { Alarm } from "./model";
import { tenancy } from "./tenancy.svelte";

interface Choice {
  sound: boolean;
  notification: boolean;
}

const KEY = "tidewire-alarm-notice";
const EVERY_MS = 5_000;
const PAGE = 20;
/** Above this number, one summary replaces the single notices. */
const EACH_MAX = 3;
const BEEP_S = 0.18;

class AlarmNotice {
  choice = $state.raw<Choice>(stored());
  /** Browsers show notifications only for pages from this machine or over TLS. */
  readonly canNotify = "Notification" in window && isSecureContext;
  #audio: AudioContext | undefined;

  get isOn(): boolean {
    return this.choice.sound || this.choice.notification;
  }

  setSound(isOn: boolean): void {
    this.#store({ ...this.choice, sound: isOn });
    // Plays the sound once as a preview. Browsers allow sound only after a click.
    if (isOn) this.#beep();
  }

  async setNotification(isOn: boolean): Promise<void> {
    const isAllowed = !isOn || (await Notification.requestPermission()) === "granted";
    if (!isAllowed)
      toasts.bad(
        new Error(
          "This browser blocks notifications from this page. Allow them in the browser's settings for this site.",
        ),
      );
    this.#store({ ...this.choice, notification: isOn && isAllowed });
  }

  /** Runs while notices are enabled. Returns a function that stops it. */
  start(): () => void {
    let newest: number | undefined;
    let isAsking = false;
    const look = async () => {
      if (isAsking) return;
      isAsking = true;
      if (!tenancy.isLoggedIn) await tenancy.check();
      if (tenancy.isLoggedIn) {
        const found = (
          await alarms({ page: 0, pageSize: PAGE, sortProperty: "createdTime", sortOrder: "DESC" }, undefined)
        ).data;
        const before = newest;
        newest = Math.max(before ?? 0, ...found.map(madeAt));
        if (before !== undefined) this.#announce(found.filter((one) => madeAt(one) > before));
      }
    };
    const again = () =>
      void look()
        .catch(() => undefined)
        .finally(() => {
          isAsking = false;
        });
    again();
    const timer = setInterval(again, EVERY_MS);
    return () => clearInterval(timer);
  }

  #announce(fresh: Alarm[]): void {
    if (fresh.length === 0) return;
    const texts = fresh.map(
      (one) => `${one.severity.toLowerCase()}: ${one.type} of ${one.originatorName ?? "a deleted entity"}`,
    );
    const lines = texts.length > EACH_MAX ? [`${texts.length} new alarms. First: ${texts.at(-1)}`] : texts;
    for (const text of lines) toasts.bad(new Error(`New alarm: ${text}`));
    if (this.choice.sound) this.#beep();
    if (this.choice.notification && this.canNotify && Notification.permission === "granted") {
      for (const text of lines) {
        const shown = new Notification("New alarm", { body: text });
        shown.onclick = () => {
          focus();
          location.hash = "#/alarms";
        };
      }
    }
  }

  #beep(): void {
    this.#audio ??= new AudioContext();
    const audio = this.#audio;
    void audio.resume();
    for (const [at, frequency] of [
      [0, 880],
      [1.4 * BEEP_S, 660],
    ] as const) {
      const tone = audio.createOscillator();
      const volume = audio.createGain();
      tone.frequency.value = frequency;
      volume.gain.value = 0.15;
      tone.connect(volume).connect(audio.destination);
      tone.start(audio.currentTime + at);
      tone.stop(audio.currentTime + at + BEEP_S);
    }
  }

  #store(choice: Choice): void {
    this.choice = choice;
    localStorage.setItem(KEY, JSON.stringify(choice));
  }
}

const madeAt = (one: Alarm): number => Number(one["createdTime"]);

function stored(): Choice {
  try {
    return { sound: false, notification: false, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Choice>) };
  } catch {
    return { sound: false, notification: false };
  }
}

export const alarmNotice = new AlarmNotice();
