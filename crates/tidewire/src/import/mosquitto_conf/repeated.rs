//! Options that stand several times in a listener, a bridge, or the options of the whole server. Of most of them, the
//! last line counts.

use std::collections::HashMap;

use super::{ConfLine, Sections, flag, go_auth};
use crate::import::report::Report;

/// Options of which all lines count, besides those that Mosquitto passes to plug-ins.
const LISTS: [&str; 12] = [
    "listener",
    "connection",
    "topic",
    "include_dir",
    "log_dest",
    "log_type",
    "websockets_origin",
    "plugin",
    "auth_plugin",
    "global_plugin",
    "plugin_load",
    "plugin_use",
];

/// Other names of options.
const ALIASES: [(&str, &str); 7] = [
    ("retained_persistence", "persistence"),
    ("maximum_qos", "max_qos"),
    ("addresses", "address"),
    ("clientid", "remote_clientid"),
    ("username", "remote_username"),
    ("password", "remote_password"),
    ("websockets_headers_size", "packet_buffer_size"),
];

/// The first line that turns it on counts.
const STICKY: &str = "per_listener_settings";

/// Removes the lines that another one replaces, and reports them.
pub fn remove(found: &mut Sections<'_>, report: &Report) {
    remove_from(&mut found.global, report);
    for lines in found.listeners.iter_mut().chain(&mut found.bridges) {
        remove_from(lines, report);
    }
}

fn remove_from<'a>(lines: &mut Vec<ConfLine<'a>>, report: &Report) {
    let mut by_name: HashMap<&'a str, usize> = HashMap::new();
    for (at, line) in lines.iter().enumerate() {
        let name = name(line.key);
        let first = by_name.get(name).map(|first| lines[*first].value);
        let is_decided = name == STICKY && first.is_some_and(|value| flag(value) != Some(false));
        if !is_decided {
            by_name.insert(name, at);
        }
    }
    let counting = |(at, line): (usize, &ConfLine<'a>)| match is_list(line.key) {
        true => at,
        false => by_name[name(line.key)],
    };
    let counting: Vec<usize> = lines.iter().enumerate().map(counting).collect();
    for (at, by) in counting.iter().copied().enumerate() {
        let (line, by_line) = (&lines[at], &lines[by]);
        if at != by {
            let place = format!("{}:{}", by_line.file, by_line.line);
            report.add_replaced(line.file, line.line, &line.item, &place);
        }
    }
    let mut counting = counting.into_iter().enumerate();
    lines.retain(|_| counting.next().is_some_and(|(at, by)| at == by));
}

fn is_list(key: &str) -> bool {
    LISTS.contains(&key) || go_auth::option_name(key).is_some()
}

fn name(key: &str) -> &str {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == key);
    alias.map_or(key, |(_, name)| name)
}
