//! The page of `$SYS` topics, and of the events that rules read.

use std::fmt::Write;

use rules::{Column, EventKind};

const INTRODUCTION: &str = "\
The server publishes its statistics below `$SYS`, with the names and payloads of Mosquitto and EMQX. Rules read events, such as
the connection of a client, from topics below `$events`.

The server publishes a statistic, as a retained message, when it has changed, at most every
[`sys.interval`](configuration.md#sysinterval). A filter that begins with a wildcard, such as `#`, does not match topics
that begin with `$`. The payload is text.

`<node>` is the name of the node ([`node.name`](configuration.md#nodename)).";

const CLIENT_EVENTS: &str = "\
The server publishes these messages when it happens, as JSON, not retained. At most 4,096 of them wait to be published; the
server leaves out more.

| topic | when |
|---|---|
| `$SYS/brokers/<node>/clients/<client id>/connected` | A client connected. `+` and `#` in its id are `%2B` and `%23`. |
| `$SYS/brokers/<node>/clients/<client id>/disconnected` | A connection ended. |
| `$SYS/brokers/<node>/alarms/activate` | An alarm of the node began. |
| `$SYS/brokers/<node>/alarms/deactivate` | An alarm of the node ended. |";

const EVENTS: &str = "\
A rule reads an event with `FROM \"$events/client/connected\"`. A filter such as `\"$events/client/#\"` stands for all events that
it matches. MQTT clients cannot subscribe to these topics. [Rule SQL](rule-sql.md#events) says what the events mean in detail.

Every event also has the columns `event` (its name), `timestamp`, `node` and `metadata`.";

pub fn page() -> String {
    let mut page = super::head(
        "`$SYS` topics and events",
        "crates/broker/src/sys.rs and crates/rules/src/event.rs",
        INTRODUCTION,
    );
    tree(&mut page, "Statistics as in Mosquitto", &broker::mosquitto_sys_topics());
    tree(&mut page, "Statistics as in EMQX", &broker::emqx_sys_topics());
    let _ = write!(
        page,
        "\n## Clients and alarms\n\n{CLIENT_EVENTS}\n\n## Events for rules\n\n{EVENTS}\n"
    );
    for kind in EventKind::ALL {
        page.push_str(&event(*kind));
    }
    page.push_str("\n## Columns of events\n\n| column | meaning |\n|---|---|\n");
    for column in Column::ALL {
        let _ = writeln!(page, "| `{}` | {} |", column.name(), super::cell(column.about()));
    }
    page
}

fn tree(page: &mut String, title: &str, topics: &[broker::SysTopic]) {
    let _ = write!(page, "\n## {title}\n\n| topic | payload |\n|---|---|\n");
    for (topic, description) in topics {
        let _ = writeln!(page, "| `{topic}` | {} |", super::cell(description));
    }
}

fn event(kind: EventKind) -> String {
    let names = match kind {
        EventKind::MessagePublish => "A topic filter, such as `\"t/#\"`".to_owned(),
        EventKind::Source => "`\"$bridges/…\"`, `\"$sources/…\"`".to_owned(),
        kind => {
            let topics = kind.topics().iter().map(|topic| format!("`{topic}`"));
            topics.collect::<Vec<_>>().join(", ")
        }
    };
    let columns: Vec<String> = kind
        .own_columns()
        .iter()
        .map(|column| format!("`{}`", column.name()))
        .collect();
    format!(
        "\n### {}\n\n{}\n\n- FROM: {names}\n- Columns: {}\n",
        kind.name(),
        super::sentence(&capitalized(kind.about())),
        columns.join(", ")
    )
}

fn capitalized(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + characters.as_str()
}
