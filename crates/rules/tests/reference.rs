//! The parts of `docs/rules.md` that come from the code: `UPDATE=1 cargo test -p tidewire-rules --test reference`.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

mod support;

use rules::{Column, EventKind, Group, absent_functions, functions};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");

#[test]
fn generated_parts_are_up_to_date() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let mut updated = page.clone();
    for (name, text) in [
        ("events", events()),
        ("columns", columns()),
        ("functions", function_tables()),
        ("absent", absent()),
    ] {
        updated = replaced(&updated, name, &text);
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &updated).unwrap();
    } else {
        assert!(
            updated == page,
            "docs/rules.md is out of date: UPDATE=1 cargo test -p tidewire-rules --test reference"
        );
    }
}

/// The page with the text between the two marks of that name.
fn replaced(page: &str, name: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("{begin} is missing"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("{end} is missing"));
    format!("{before}{begin}{text}{end}{after}")
}

fn events() -> String {
    let mut text = "| FROM | when | columns |\n|---|---|---|\n".to_owned();
    for kind in EventKind::ALL {
        let names = match kind {
            EventKind::MessagePublish => "a topic filter, `\"t/#\"`".to_owned(),
            EventKind::Source => "`\"$bridges/…\"`, `\"$sources/…\"`".to_owned(),
            kind => kind
                .topics()
                .iter()
                .map(|topic| format!("`{topic}`"))
                .collect::<Vec<_>>()
                .join("<br>"),
        };
        let columns: Vec<&str> = kind.own_columns().iter().map(|column| column.name()).collect();
        text += &format!(
            "| {names} | {} (`{}`) | {} |\n",
            kind.about(),
            kind.name(),
            columns.join(", ")
        );
    }
    text
}

fn columns() -> String {
    let mut text = "| column | what it is |\n|---|---|\n".to_owned();
    for column in Column::ALL {
        text += &format!("| `{}` | {} |\n", column.name(), column.about());
    }
    text
}

fn function_tables() -> String {
    let mut text = String::new();
    let mut group: Option<Group> = None;
    for function in functions() {
        if group != Some(function.group)
            && functions()
                .find(|first| first.group == function.group)
                .is_some_and(|first| first.name == function.name)
        {
            group = Some(function.group);
            text += &format!(
                "\n### {}\n\n| function | gives | example |\n|---|---|---|\n",
                function.group.title()
            );
            for member in functions().filter(|member| member.group == function.group) {
                let example = if member.example.is_empty() {
                    String::new()
                } else {
                    format!("`{}`", member.example.replace('|', "\\|"))
                };
                text += &format!(
                    "| `{}` | {} | {example} |\n",
                    member.signature(),
                    member.about.replace('|', "\\|")
                );
            }
        }
    }
    text + "\n"
}

fn absent() -> String {
    let mut text = "| function | why |\n|---|---|\n".to_owned();
    for (name, why) in absent_functions() {
        text += &format!("| `{name}` | {why} |\n");
    }
    text
}
