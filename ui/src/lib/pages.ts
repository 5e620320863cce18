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
  /** The page shows nothing without the role administrator. */
  isOfAdmin?: boolean;
  /** The page is useful with a role in a namespace. */
  isOfNamespace?: boolean;
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
        load: () => import("../routes/node/Home.svelte"),
      },
      {
        path: "benchmarks",
        title: "Benchmarks",
        docs: "guides/run-a-benchmark.html",
        isOfAdmin: true,
        load: () => import("../routes/node/Benchmarks.svelte"),
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
        isOfNamespace: true,
        load: () => import("../routes/mqtt/Clients.svelte"),
        one: () => import("../routes/mqtt/Client.svelte"),
        docsOfOne: "concepts/sessions-and-queues.html#in-flight-and-queued",
      },
      {
        path: "refused",
        title: "Refused clients",
        docs: "operations/troubleshooting.html#a-client-cannot-connect",
        load: () => import("../routes/mqtt/Refused.svelte"),
      },
      {
        path: "bans",
        title: "Bans",
        docs: "reference/api-use.html#bans",
        load: () => import("../routes/mqtt/Bans.svelte"),
      },
      {
        path: "subscriptions",
        title: "Subscriptions",
        docs: "concepts/sessions-and-queues.html#shared-subscriptions",
        isOfNamespace: true,
        load: () => import("../routes/mqtt/Subscriptions.svelte"),
      },
      {
        path: "topics",
        title: "Topics",
        docs: "guides/console.html#topics-and-mqtt-client",
        load: () => import("../routes/mqtt/Topics.svelte"),
      },
      {
        path: "retained",
        title: "Retained messages",
        docs: "concepts/sessions-and-queues.html#retained-messages",
        isOfNamespace: true,
        load: () => import("../routes/mqtt/Retained.svelte"),
      },
      {
        path: "mqtt",
        title: "MQTT client",
        docs: "guides/console.html#topics-and-mqtt-client",
        load: () => import("../routes/mqtt/MqttClient.svelte"),
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
        load: () => import("../routes/devices/Devices.svelte"),
        one: () => import("../routes/devices/Device.svelte"),
        docsOfOne: "reference/device-api.html",
      },
      {
        path: "dashboards",
        title: "Dashboards",
        docs: "guides/dashboards.html",
        isOfPlatform: true,
        load: () => import("../routes/dashboards/Dashboards.svelte"),
        one: () => import("../routes/dashboards/Dashboard.svelte"),
        docsOfOne: "guides/dashboards.html#widgets",
      },
      {
        path: "profiles",
        title: "Device profiles",
        docs: "guides/devices-and-alarms.html#create-a-profile-with-an-alarm-rule",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/devices/Profiles.svelte"),
        one: () => import("../routes/devices/Profile.svelte"),
        docsOfOne: "guides/devices-and-alarms.html#how-alarm-rules-work",
      },
      {
        path: "chains",
        title: "Rule chains",
        docs: "guides/rule-chains.html",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/chains/Chains.svelte"),
        one: () => import("../routes/chains/Chain.svelte"),
        docsOfOne: "guides/rule-chains.html#nodes-that-run",
      },
      {
        path: "usage",
        title: "Usage",
        docs: "reference/thingsboard-api.html#tenant-profiles",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/devices/Usage.svelte"),
      },
      {
        path: "alarms",
        title: "Alarms",
        docs: "guides/devices-and-alarms.html#read-the-alarm",
        isOfPlatform: true,
        load: () => import("../routes/devices/Alarms.svelte"),
      },
      {
        path: "tenant-audit",
        title: "Tenant audit log",
        docs: "reference/thingsboard-api.html#audit-log",
        isOfPlatform: true,
        isOfTenant: true,
        load: () => import("../routes/devices/TenantAudit.svelte"),
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
        load: () => import("../routes/integration/Rules.svelte"),
        one: () => import("../routes/integration/Rule.svelte"),
        docsOfOne: "reference/rule-sql.html",
      },
      {
        path: "actions",
        title: "Actions",
        docs: "concepts/rules-and-actions.html#buffers",
        load: () => import("../routes/integration/Actions.svelte"),
        one: () => import("../routes/integration/Action.svelte"),
        docsOfOne: "reference/connector-behaviour.html",
      },
      {
        path: "sources",
        title: "Sources",
        docs: "concepts/rules-and-actions.html#the-parts",
        load: () => import("../routes/integration/Sources.svelte"),
        one: () => import("../routes/integration/Source.svelte"),
        docsOfOne: "reference/connectors.html",
      },
      {
        path: "connectors",
        title: "Connectors",
        docs: "concepts/rules-and-actions.html#the-parts",
        load: () => import("../routes/integration/Connectors.svelte"),
        one: () => import("../routes/integration/Connector.svelte"),
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
        load: () => import("../routes/settings/Users.svelte"),
      },
      {
        path: "authentication",
        title: "Authentication",
        docs: "guides/secure.html#see-and-test-other-systems",
        load: () => import("../routes/settings/Authentication.svelte"),
      },
      {
        path: "access",
        title: "Access rules",
        docs: "concepts/security-model.html#mqtt-clients",
        load: () => import("../routes/settings/Access.svelte"),
      },
      {
        path: "listeners",
        title: "Listeners",
        docs: "reference/configuration.html#listenerstcptlswswssquicname",
        load: () => import("../routes/settings/Listeners.svelte"),
      },
      {
        path: "certificates",
        title: "Certificates",
        docs: "reference/api-use.html#certificates",
        load: () => import("../routes/settings/Certificates.svelte"),
      },
      {
        path: "configuration",
        title: "Configuration",
        docs: "reference/configuration.html",
        load: () => import("../routes/settings/Configuration.svelte"),
      },
      {
        path: "backup",
        title: "Backup",
        docs: "guides/back-up-and-restore.html",
        isOfAdmin: true,
        load: () => import("../routes/settings/Backup.svelte"),
      },
      {
        path: "console-users",
        title: "Console users",
        docs: "guides/console.html#log-in",
        isOfAdmin: true,
        load: () => import("../routes/settings/ConsoleUsers.svelte"),
      },
      {
        path: "keys",
        title: "API keys",
        docs: "reference/api-use.html#api-keys",
        isOfAdmin: true,
        load: () => import("../routes/settings/Keys.svelte"),
      },
      {
        path: "audit",
        title: "Audit log",
        docs: "reference/api-use.html#audit-log",
        isOfAdmin: true,
        load: () => import("../routes/settings/Audit.svelte"),
      },
      {
        path: "logs",
        title: "Logs",
        docs: "operations/monitoring.html#the-log",
        load: () => import("../routes/settings/Logs.svelte"),
      },
      {
        path: "account",
        title: "My account",
        docs: "guides/console.html#log-in",
        isOfNamespace: true,
        load: () => import("../routes/settings/Account.svelte"),
      },
      {
        path: "about",
        title: "About",
        docs: "operations/monitoring.html#health-checks",
        load: () => import("../routes/settings/About.svelte"),
      },
    ],
  },
];

const all = groups.flatMap((group) => group.pages);

/** Whether a login reaches the page. `namespace`: that of its role. */
export const isReachable = (page: Page, isAdmin: boolean, namespace: string): boolean =>
  namespace ? page.isOfNamespace === true : isAdmin || !page.isOfAdmin;

export const find = (path: string): Page | undefined => all.find((page) => page.path === path);

/** Returns the page of the book that documents the console page at an address, or undefined for an unknown address. */
export function documentation([path = "home", id]: string[]): string | undefined {
  const page = find(path);
  return id === undefined ? page?.docs : (page?.docsOfOne ?? page?.docs);
}
