// Listeners as the configuration has them: a section each, such as `listeners.tcp.lan`.

import type { ConfigValue } from "../api/generated";

/** A name that is no word stands in quotes in a key. */
export const sectionOf = (transport: string, name: string): string => `listeners.${transport}.${/^[A-Za-z0-9_-]+$/.test(name) ? name : JSON.stringify(name)}`;

export const optionsOf = (values: ConfigValue[], section: string): ConfigValue[] => values.filter((one) => one.key.startsWith(`${section}.`));

/** Of all listeners there are, those that are turned off too. */
export const sections = (values: ConfigValue[]): string[] => values.flatMap((one) => /^(listeners\..+)\.bind$/.exec(one.key)?.[1] ?? []);
