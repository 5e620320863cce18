//! The page of the functions of rule SQL, made from the table of functions.

use std::fmt::Write;

use rules::{Function, FunctionGroup, functions, unsupported_functions};

const INTRODUCTION: &str = "\
Functions of [rule SQL](rule-sql.md), in EMQX's names. Arguments in brackets are optional. If a function cannot use an argument,
the rule fails for that message.

A test evaluates each example. The examples read a message of the client `c_example` with the topic `t/a` and the payload
`{\"msg\": \"hello\"}`, at 2024-02-23 15:00:00 in the time zone +08:00.";

const ABSENT: &str = "\
These functions of EMQX do not exist:

| function | reason |
|---|---|";

pub fn page() -> String {
    let mut page = super::head("Rule functions", "crates/rules/src/functions", INTRODUCTION);
    let mut groups: Vec<FunctionGroup> = Vec::new();
    for function in functions() {
        if !groups.contains(&function.group) {
            groups.push(function.group);
        }
    }
    for group in groups {
        let _ = write!(
            page,
            "\n## {}\n\n| function | result | example |\n|---|---|---|\n",
            group.title()
        );
        for function in functions().filter(|function| function.group == group) {
            page.push_str(&row(function));
        }
    }
    let _ = write!(page, "\n## Functions that do not exist\n\n{ABSENT}\n");
    for (name, why) in unsupported_functions() {
        let _ = writeln!(page, "| `{name}` | {} |", super::cell(why));
    }
    page
}

fn row(function: &Function) -> String {
    format!(
        "| `{}` | {} | `{}` |\n",
        function.signature(),
        super::cell(function.about),
        function.example.replace('|', "\\|")
    )
}
