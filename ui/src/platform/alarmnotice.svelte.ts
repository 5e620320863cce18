// New alarms of the tenant, told by sound or by a notification of the system to who has asked for it in this browser, on whichever page. A browser asks a tab in the
// background less often: there it can take a minute.
import { toasts } from "../lib/toasts.svelte";
import { alarms } from "./api";
import type { Alarm } from "./model";
import { tenancy } from "./tenancy.svelte";

interface Choice { sound: boolean; notification: boolean }

const KEY = "tidewire-alarm-notice";
const EVERY_MS = 5_000;
const PAGE = 20;
/** More at once are counted. */
const EACH_MAX = 3;
const BEEP_S = 0.18;

class AlarmNotice {
  choice = $state.raw<Choice>(kept());
  /** Browsers show none for a page that came over a network without TLS. */
  readonly canNotify = "Notification" in window && isSecureContext;
  #audio: AudioContext | undefined;

  get isOn(): boolean {
    return this.choice.sound || this.choice.notification;
  }

  setSound(isOn: boolean): void {
    this.#keep({ ...this.choice, sound: isOn });
    // Heard once, one knows it; and after a click the browser allows it.
    if (isOn) this.#beep();
  }

  async setNotification(isOn: boolean): Promise<void> {
    const isAllowed = !isOn || (await Notification.requestPermission()) === "granted";
    if (!isAllowed) toasts.bad(new Error("This browser does not allow notifications of this page: its settings for the page say so."));
    this.#keep({ ...this.choice, notification: isOn && isAllowed });
  }

  /** While it is on; gives what ends it. */
  start(): () => void {
    let newest: number | undefined;
    let isAsking = false;
    const look = async () => {
      if (isAsking) return;
      isAsking = true;
      if (!tenancy.isIn) await tenancy.check();
      if (tenancy.isIn) {
        const found = (await alarms({ page: 0, pageSize: PAGE, sortProperty: "createdTime", sortOrder: "DESC" }, undefined)).data;
        const before = newest;
        newest = Math.max(before ?? 0, ...found.map(madeAt));
        if (before !== undefined) this.#tell(found.filter((one) => madeAt(one) > before));
      }
    };
    const again = () => void look().catch(() => undefined).finally(() => { isAsking = false; });
    again();
    const timer = setInterval(again, EVERY_MS);
    return () => clearInterval(timer);
  }

  #tell(fresh: Alarm[]): void {
    if (fresh.length === 0) return;
    const texts = fresh.map((one) => `${one.severity.toLowerCase()}: ${one.type} of ${one.originatorName ?? "something that is gone"}`);
    const said = texts.length > EACH_MAX ? [`${texts.length} new alarms, first ${texts.at(-1)}`] : texts;
    for (const text of said) toasts.bad(new Error(`New alarm, ${text}`));
    if (this.choice.sound) this.#beep();
    if (this.choice.notification && this.canNotify && Notification.permission === "granted") {
      for (const text of said) {
        const shown = new Notification("New alarm", { body: text });
        shown.onclick = () => { focus(); location.hash = "#/alarms"; };
      }
    }
  }

  #beep(): void {
    this.#audio ??= new AudioContext();
    const audio = this.#audio;
    void audio.resume();
    for (const [at, frequency] of [[0, 880], [1.4 * BEEP_S, 660]] as const) {
      const tone = audio.createOscillator();
      const volume = audio.createGain();
      tone.frequency.value = frequency;
      volume.gain.value = 0.15;
      tone.connect(volume).connect(audio.destination);
      tone.start(audio.currentTime + at);
      tone.stop(audio.currentTime + at + BEEP_S);
    }
  }

  #keep(choice: Choice): void {
    this.choice = choice;
    localStorage.setItem(KEY, JSON.stringify(choice));
  }
}

const madeAt = (one: Alarm): number => Number(one["createdTime"]);

function kept(): Choice {
  try {
    return { sound: false, notification: false, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Choice>) };
  } catch {
    return { sound: false, notification: false };
  }
}

export const alarmNotice = new AlarmNotice();
