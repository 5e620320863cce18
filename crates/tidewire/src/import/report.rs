//! The report of an import: imported, changed and unsupported items, each with its file and line.
//!
//! A row names an item and the option it became, never its value: values can be secrets.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Write;

/// The result for an item of the other broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The option or file that has it now.
    Imported(String),
    /// As `Imported`, with a difference.
    Changed {
        to: String,
        because: String,
    },
    NotSupported {
        because: String,
    },
}

impl Outcome {
    fn name(&self) -> &'static str {
        match self {
            Outcome::Imported(_) => "imported",
            Outcome::Changed { .. } => "changed",
            Outcome::NotSupported { .. } => "not supported",
        }
    }

    fn detail(&self) -> String {
        match self {
            Outcome::Imported(to) => to.clone(),
            Outcome::Changed { to, because } => format!("{to}: {because}"),
            Outcome::NotSupported { because } => format!("because {because}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    file: String,
    /// 0: the file as a whole.
    line: usize,
    item: String,
    outcome: Outcome,
}

/// Collects the rows. The first outcome of an item counts: a part that is handled on its own is reported before the
/// whole.
#[derive(Debug, Default)]
pub struct Report {
    rows: RefCell<Vec<Row>>,
    known: RefCell<HashSet<(String, usize, String)>>,
}

impl Report {
    pub fn add(&self, file: &str, line: usize, item: &str, outcome: Outcome) {
        let item = printable(item);
        let key = (file.to_owned(), line, item.clone());
        if self.known.borrow_mut().insert(key) {
            self.rows.borrow_mut().push(Row {
                file: file.to_owned(),
                line,
                item,
                outcome,
            });
        }
    }

    /// Replaces the outcome of everything below an item, because a check refused it.
    pub fn refuse(&self, item: &str, because: &str) {
        let item = printable(item);
        let is_below = |row: &str| {
            row.strip_prefix(&item)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        for row in self.rows.borrow_mut().iter_mut() {
            if is_below(&row.item) {
                row.outcome = Outcome::NotSupported {
                    because: because.to_owned(),
                };
            }
        }
    }

    /// Returns the report as a table, in the order of the files.
    pub fn text(&self, title: &str) -> String {
        let mut rows = self.rows.borrow().clone();
        rows.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        let place = |row: &Row| match row.line {
            0 => row.file.clone(),
            line => format!("{}:{line}", row.file),
        };
        let width = |of: &dyn Fn(&Row) -> usize, head: &str| rows.iter().map(of).max().unwrap_or(0).max(head.len());
        let places = width(&|row| place(row).chars().count(), "where");
        let items = width(&|row| row.item.chars().count(), "item");
        let mut text = format!("{title}\n\n");
        let mut line = |place: &str, item: &str, result: &str, detail: &str| {
            let full = format!("{place:places$}  {item:items$}  {result:13}  {detail}");
            let _ = writeln!(text, "{}", full.trim_end());
        };
        line("where", "item", "result", "as / because");
        for row in &rows {
            line(
                &place(row),
                &row.item,
                row.outcome.name(),
                &printable(&row.outcome.detail()),
            );
        }
        let count = |name| rows.iter().filter(|row| row.outcome.name() == name).count();
        let _ = writeln!(
            text,
            "\n{} imported, {} changed, {} not supported",
            count("imported"),
            count("changed"),
            count("not supported")
        );
        text
    }
}

/// Escapes control characters: names come from the other broker's files.
fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}
