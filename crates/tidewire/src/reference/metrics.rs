//! The page of all metrics.

use std::fmt::Write;

use api::MetricFamily;

const INTRODUCTION: &str = "\
`GET /metrics` on the port of the API answers in the OpenMetrics 1.0 format, which Prometheus reads. From loopback it needs
no login; elsewhere it needs an API key, unless [`api.metrics_without_login`](configuration.md#apimetrics_without_login) is
set. [Monitoring](../operations/monitoring.md) says which metrics to alert on.

Labels have few values: `reason`, `qos`, `type` (of packet), `listener`, `transport`, `status` (`2xx`, …), `outcome`,
`provider`, `result`, and the names of rules, actions, sources and connectors, of each the first 1,000. No label contains a
client, a topic or a user.";

/// Names with fewer metrics than this stand under *Node*.
const GROUP_MIN: usize = 3;

pub fn page() -> String {
    let mut page = super::head("Metrics", "crates/api/src/metrics", INTRODUCTION);
    for (title, families) in groups() {
        let _ = write!(page, "\n## {title}\n\n| metric | kind | meaning |\n|---|---|---|\n");
        for family in families {
            page.push_str(&row(family));
        }
    }
    page
}

/// Returns the metrics by component, in the order in which `/metrics` shows the components.
fn groups() -> Vec<(String, Vec<&'static MetricFamily>)> {
    let size = |component| {
        let families = api::metric_families();
        families.filter(|family| family.component() == component).count()
    };
    let mut groups: Vec<(String, Vec<&MetricFamily>)> = vec![("Node".into(), Vec::new())];
    for family in api::metric_families() {
        let component = family.component();
        let title = match size(component) {
            0..GROUP_MIN => "Node".to_owned(),
            _ => format!("`tidewire_{component}_…`"),
        };
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, families)) => families.push(family),
            None => groups.push((title, vec![family])),
        }
    }
    groups
}

fn row(family: &MetricFamily) -> String {
    format!(
        "| `{}` | {} | {} |\n",
        family.full_name(),
        family.kind.name(),
        super::cell(family.help)
    )
}
