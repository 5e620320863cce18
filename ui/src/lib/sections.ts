// Listener sections of the configuration, such as `listeners.tcp.lan`.

import type { ConfigValue } from "../api/generated";

/** Quotes a name in a TOML key as in JSON, except for DEL, which TOML requires to be escaped. */
const quoted = (name: string) => JSON.stringify(name).replaceAll("\u007f", "\\u007f");

export const sectionOf = (transport: string, name: string): string =>
  `listeners.${transport}.${/^[A-Za-z0-9_-]+$/.test(name) ? name : quoted(name)}`;

export const optionsOf = (values: ConfigValue[], section: string): ConfigValue[] =>
  values.filter((one) => one.key.startsWith(`${section}.`));

/** Returns the sections of all listeners, including disabled ones. */
export const sections = (values: ConfigValue[]): string[] =>
  values.flatMap((one) => /^(listeners\..+)\.bind$/.exec(one.key)?.[1] ?? []);
