// All pages: path, title in the navigation, page of the book, and code, which is loaded on the first visit.
import type { Component } from "svelte";

export interface Page {
  path: string;
  title: string;
  /** Page of the book below `/docs/`, with an anchor. The tests of crates/book check that it exists. */
  docs: string;
  load: () => Promise<{ default: Component<Record<string, never>> }>;
  /** The page needs the device platform and a tenant. */
  isOfPlatform?: boolean;
  /** The page is for tenant administrators. Customer users cannot see it. */
  isOfTenant?: boolean;
  /** The page of one object: `/clients/<id>`. */
  one?: () => Promise<{ default: Component<{ id: string }> }>;
  /** Page of the book for the page of one object, if it is another one. */
  docsOfOne?: string;
}

export interface Group {
  title: string;
  pages: Page[];
}

export const groups: Group[] = [
  {
    title: "Node",
    pages: [
      {
        path: "home",
        title: "Home",
        docs: "operations/monitoring.html#what-to-watch",
        load: () => import("../routes/Home.svelte"),
      },
      {
        path: "benchmarks",
        title: "Benchmarks",
        docs: "guides/run-a-benchmark.html",
        load: () => import("../routes/Benchmarks.svelte"),
      },
    ],
  },
  {
    title: "MQTT",
    pages: [
      {
        path: "clients",
        title: "Clients",
        docs: "concepts/sessions-and-queues.html",
        load: () => import("../routes/Clients.svelte"),
        one: () => import("../routes/Client.svelte"),
        docsOfOne: "concepts/sessions-and-queues.html#in-flight-and-queued",
      },
      {
        path: "refused",
        title: "Refused clients",
        docs: "operations/troubleshooting.html#a-client-cannot-connect",
        load: () => import("../routes/Refused.svelte"),
      },
      { path: "bans", title: "Bans", docs: "reference/api-use.html#bans", load: () => import("../routes/Bans.svelte") },
      {
        path: "subscriptions",
        title: "Subscriptions",
        docs: "concepts/sessions-and-queues.html#shared-subscriptions",
        load: () => import("../routes/Subscriptions.svelte"),
      },
      {
        path: "topics",
        title: "Topics",
        docs: "guides/console.html#topics-and-mqtt-client",
        load: () => import("../routes/Topics.svelte"),
      },
      {
        path: "retained",
        title: "Retained messages",
        docs: "concepts/sessions-and-queues.html#retained-messages",
        load: () => import("../routes/Retained.svelte"),
      },
      {
        path: "mqtt",
        title: "MQTT client",
        docs: "guides/console.html#topics-and-mqtt-client",
        load: () => import("../routes/MqttClient.svelte"),
      },
    ],
  },
  {
    title: "Devices",
    pages: [
      {
        path: "devices",
        title: "Devices",
        docs: "guides/devices-and-alarms.html",
        isOfPlatform: true,
        load: () => import("../routes/Devices.svelte"),
        one: () => import("../routes/Device.svelte"),
        docsOfOne: "reference/device-api.html",
      },
      {
        path: "dashboards",
        title: "Dashboards",
        docs: "guides/dashboards.html",
        isOfPlatform: true,
        load: () => import("../routes/Dashboards.svelte"),
        one: () => import("../routes/Dashboard.svelte"),
        docsOfOne: "guides/dashboards.html#widgets",
      },
      {
        path: "profiles",
        title: "Device profiles",
        docs: "guides/devices-and-alarms.html#create-a-profile-with-an-alarm-rule",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/Profiles.svelte"),
        one: () => import("../routes/Profile.svelte"),
        docsOfOne: "guides/devices-and-alarms.html#how-alarm-rules-work",
      },
      {
        path: "chains",
        title: "Rule chains",
        docs: "guides/rule-chains.html",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/Chains.svelte"),
        one: () => import("../routes/Chain.svelte"),
        docsOfOne: "guides/rule-chains.html#nodes-that-run",
      },
      {
        path: "usage",
        title: "Usage",
        docs: "reference/thingsboard-api.html#tenant-profiles",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/Usage.svelte"),
      },
      {
        path: "alarms",
        title: "Alarms",
        docs: "guides/devices-and-alarms.html#read-the-alarm",
        isOfPlatform: true,
        load: () => import("../routes/Alarms.svelte"),
      },
      {
        path: "tenant-audit",
        title: "Tenant audit log",
        docs: "reference/thingsboard-api.html#audit-log",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/TenantAudit.svelte"),
      },
    ],
  },
  {
    title: "Integration",
    pages: [
      {
        path: "rules",
        title: "Rules",
        docs: "concepts/rules-and-actions.html",
        load: () => import("../routes/Rules.svelte"),
        one: () => import("../routes/Rule.svelte"),
        docsOfOne: "reference/rule-sql.html",
      },
      {
        path: "actions",
        title: "Actions",
        docs: "concepts/rules-and-actions.html#buffers",
        load: () => import("../routes/Actions.svelte"),
        one: () => import("../routes/Action.svelte"),
        docsOfOne: "reference/connector-behaviour.html",
      },
      {
        path: "sources",
        title: "Sources",
        docs: "concepts/rules-and-actions.html#the-parts",
        load: () => import("../routes/Sources.svelte"),
        one: () => import("../routes/Source.svelte"),
        docsOfOne: "reference/connectors.html",
      },
      {
        path: "connectors",
        title: "Connectors",
        docs: "concepts/rules-and-actions.html#the-parts",
        load: () => import("../routes/Connectors.svelte"),
        one: () => import("../routes/Connector.svelte"),
        docsOfOne: "reference/connectors.html",
      },
    ],
  },
  {
    title: "Settings",
    pages: [
      {
        path: "users",
        title: "MQTT users",
        docs: "guides/secure.html#2-add-mqtt-users",
        load: () => import("../routes/Users.svelte"),
      },
      {
        path: "access",
        title: "Access rules",
        docs: "concepts/security-model.html#mqtt-clients",
        load: () => import("../routes/Access.svelte"),
      },
      {
        path: "listeners",
        title: "Listeners",
        docs: "reference/configuration.html#listenerstcptlswswssname",
        load: () => import("../routes/Listeners.svelte"),
      },
      {
        path: "certificates",
        title: "Certificates",
        docs: "reference/api-use.html#certificates",
        load: () => import("../routes/Certificates.svelte"),
      },
      {
        path: "configuration",
        title: "Configuration",
        docs: "reference/configuration.html",
        load: () => import("../routes/Configuration.svelte"),
      },
      {
        path: "backup",
        title: "Backup",
        docs: "guides/back-up-and-restore.html",
        load: () => import("../routes/Backup.svelte"),
      },
      {
        path: "console-users",
        title: "Console users",
        docs: "guides/console.html#log-in",
        load: () => import("../routes/ConsoleUsers.svelte"),
      },
      {
        path: "keys",
        title: "API keys",
        docs: "reference/api-use.html#api-keys",
        load: () => import("../routes/Keys.svelte"),
      },
      {
        path: "audit",
        title: "Audit log",
        docs: "reference/api-use.html#audit-log",
        load: () => import("../routes/Audit.svelte"),
      },
      {
        path: "logs",
        title: "Logs",
        docs: "operations/monitoring.html#the-log",
        load: () => import("../routes/Logs.svelte"),
      },
      {
        path: "account",
        title: "My account",
        docs: "guides/console.html#log-in",
        load: () => import("../routes/Account.svelte"),
      },
      {
        path: "about",
        title: "About",
        docs: "operations/monitoring.html#health-checks",
        load: () => import("../routes/About.svelte"),
      },
    ],
  },
];

const all = groups.flatMap((group) => group.pages);

export const find = (path: string): Page | undefined => all.find((page) => page.path === path);

/** Returns the page of the book that documents the console page at an address, or undefined for an unknown address. */
export function documentation([path = "home", id]: string[]): string | undefined {
  const page = find(path);
  return id === undefined ? page?.docs : (page?.docsOfOne ?? page?.docs);
}
