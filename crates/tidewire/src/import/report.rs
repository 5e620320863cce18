//! The report of an import: imported, changed and unsupported items, each with its file and line.
//!
//! A row names an item and the option it became. A reason can quote a value that was refused. Options for passwords,
//! tokens and keys are never quoted, and passwords in addresses are masked here.
//!
//! The names come from the other broker's files: control characters are escaped, long texts are shortened, and a long
//! name does not widen the column of all rows.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

/// Maximum width of the columns. A row with a longer text is not aligned.
const PLACE_WIDTH_MAX: usize = 60;
const ITEM_WIDTH_MAX: usize = 80;
/// Maximum length of a place, an item or a reason. The path of a key is shorter.
const TEXT_BYTES_MAX: usize = 1280;
/// A longer text is replaced by its beginning and this many bytes of its end.
const END_BYTES: usize = 128;
/// Place of an item that has no row of its own.
const NO_PLACE: &str = "-";

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

    fn printable(&self) -> Outcome {
        match self {
            Outcome::Imported(to) => Outcome::Imported(printable(to)),
            Outcome::Changed { to, because } => Outcome::Changed {
                to: printable(to),
                because: printable(because),
            },
            Outcome::NotSupported { because } => Outcome::NotSupported {
                because: printable(because),
            },
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
    /// Indexes of the rows of each item, by its printable name. Without the rows that `replace` has refused.
    by_item: RefCell<BTreeMap<String, Vec<usize>>>,
    /// Printable names of the items with rows that `replace` has refused.
    refused: RefCell<BTreeSet<String>>,
    /// Hashes of the files, lines and items that have a row. The texts would need more memory than the rows.
    known: RefCell<HashSet<u64>>,
    hasher: RandomState,
}

impl Report {
    pub fn add(&self, file: &str, line: usize, item: &str, outcome: Outcome) {
        let key = self.hasher.hash_one((file, line, item));
        if self.known.borrow_mut().insert(key) {
            let item = printable(item);
            let mut rows = self.rows.borrow_mut();
            let mut by_item = self.by_item.borrow_mut();
            by_item.entry(item.clone()).or_default().push(rows.len());
            rows.push(Row {
                file: printable(file),
                line,
                item,
                outcome: outcome.printable(),
            });
        }
    }

    /// Notes a value that another one of the same item replaces. Its row stays as it is, because outcomes of the item
    /// are those of the other value.
    pub fn add_replaced(&self, file: &str, line: usize, item: &str, by: &str) {
        let because = format!("the value at {by} replaces it");
        self.rows.borrow_mut().push(Row {
            file: printable(file),
            line,
            item: printable(item),
            outcome: Outcome::NotSupported { because }.printable(),
        });
    }

    /// Replaces the outcome of everything below an item, because a check refused it. An item without a row gets one.
    pub fn refuse(&self, item: &str, because: &str) {
        if !self.replace(item, because) {
            let because = because.to_owned();
            self.add(NO_PLACE, 0, item, Outcome::NotSupported { because });
        }
    }

    /// As `refuse`, without a new row. Returns whether the item, or an item below it, has a row. The first refusal of a
    /// row counts. Each row is replaced once, so that the time for all refusals together is linear.
    pub fn replace(&self, item: &str, because: &str) -> bool {
        let item = printable(item);
        let because = printable(because);
        let below = ['.', '['].map(|separator| format!("{item}{separator}"));
        let mut by_item = self.by_item.borrow_mut();
        let mut refused = self.refused.borrow_mut();
        let mut names: Vec<String> = by_item
            .get_key_value(&item)
            .map(|(name, _)| name.clone())
            .into_iter()
            .collect();
        for prefix in &below {
            let from = by_item.range(prefix.clone()..).map(|(name, _)| name);
            names.extend(from.take_while(|name| name.starts_with(prefix)).cloned());
        }
        let mut rows = self.rows.borrow_mut();
        for name in names {
            for row in by_item.remove(&name).into_iter().flatten() {
                rows[row].outcome = Outcome::NotSupported {
                    because: because.clone(),
                };
            }
            refused.insert(name);
        }
        let is_refused = |prefix: &String| {
            let mut from = refused.range(prefix.clone()..);
            from.next().is_some_and(|name| name.starts_with(prefix))
        };
        refused.contains(&item) || below.iter().any(is_refused)
    }

    /// Returns the report as a table, in the order of the files.
    pub fn text(&self, title: &str) -> String {
        let all = self.rows.borrow();
        let mut rows: Vec<&Row> = all.iter().collect();
        rows.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
        let place = |row: &Row| match row.line {
            0 => row.file.clone(),
            line => format!("{}:{line}", row.file),
        };
        let width =
            |of: &dyn Fn(&Row) -> usize, head: &str| rows.iter().map(|row| of(row)).max().unwrap_or(0).max(head.len());
        let places = width(&|row| place(row).chars().count(), "where").min(PLACE_WIDTH_MAX);
        let items = width(&|row| row.item.chars().count(), "item").min(ITEM_WIDTH_MAX);
        let mut text = format!("{}\n\n", printable(title));
        let mut line = |place: &str, item: &str, result: &str, detail: &str| {
            let full = format!("{place:places$}  {item:items$}  {result:13}  {detail}");
            let _ = writeln!(text, "{}", full.trim_end());
        };
        line("where", "item", "result", "as / because");
        for row in &rows {
            line(&place(row), &row.item, row.outcome.name(), &row.outcome.detail());
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

/// Escapes control characters, and characters that change the order of text on a terminal. Masks passwords in
/// addresses, and shortens a long text.
pub fn printable(text: &str) -> String {
    let text = without_passwords(text);
    let text = shortened(&text);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c.is_control() || matches!(c, '\u{200E}' | '\u{200F}' | '\u{2028}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
        {
            true => out.extend(c.escape_default()),
            false => out.push(c),
        }
    }
    out
}

fn shortened(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    let begin = text.floor_char_boundary(TEXT_BYTES_MAX - END_BYTES);
    let end = text.floor_char_boundary(text.len() - END_BYTES);
    Cow::Owned(format!("{}…{}", &text[..begin], &text[end..]))
}

/// Replaces the user and password of `scheme://user:password@host` with `***`.
fn without_passwords(text: &str) -> Cow<'_, str> {
    const SCHEME_END: &str = "://";
    if !text.contains(SCHEME_END) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(SCHEME_END) {
        let (before, address) = rest.split_at(at + SCHEME_END.len());
        out.push_str(before);
        let end = address
            .find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '`'))
            .unwrap_or(address.len());
        rest = match address[..end].rfind('@') {
            Some(at) => {
                out.push_str("***");
                &address[at..]
            }
            None => address,
        };
    }
    out.push_str(rest);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imported() -> Outcome {
        Outcome::Imported("x".to_owned())
    }

    #[test]
    fn a_refused_item_without_a_row_gets_one() {
        let report = Report::default();
        report.add("f", 1, "a.b", imported());
        report.refuse("a", "reasons");
        report.refuse("c", "other reasons");
        let text = report.text("title");
        assert!(
            text.contains("-      c     not supported  because other reasons"),
            "{text}"
        );
        assert_eq!(text.matches("because reasons").count(), 1, "{text}");
        assert!(text.contains("0 imported, 0 changed, 2 not supported"), "{text}");
    }

    #[test]
    fn only_items_below_a_refused_one_are_replaced() {
        let report = Report::default();
        for item in ["a", "a.b.c", "a[1].b", "a b", "ab", "b"] {
            report.add("f", 1, item, imported());
        }
        // The same item of another file.
        report.add("g", 1, "a", imported());
        assert!(report.replace("a", "reasons") && !report.replace("c", "reasons"));
        let text = report.text("title");
        assert!(text.contains("3 imported, 0 changed, 4 not supported"), "{text}");
    }

    #[test]
    fn first_refusal_of_a_row_counts() {
        let report = Report::default();
        for item in ["a.b.c", "a.d"] {
            report.add("f", 1, item, imported());
        }
        report.refuse("a.b.c", "reasons");
        report.refuse("a", "other reasons");
        // Their rows are refused already, so they get none.
        report.refuse("a.b", "late reasons");
        report.refuse("a.d", "late reasons");
        let text = report.text("title");
        assert_eq!(text.matches("because reasons").count(), 1, "{text}");
        assert_eq!(text.matches("because other reasons").count(), 1, "{text}");
        assert!(text.contains("0 imported, 0 changed, 2 not supported"), "{text}");
        // A row that is added later can still be refused.
        report.add("f", 2, "a.d", imported());
        assert!(report.replace("a.d", "late reasons"));
        assert!(report.text("title").contains("because late reasons"));
    }

    #[test]
    fn replaced_value_has_a_row_besides_the_one_that_counts() {
        let report = Report::default();
        report.add_replaced("f", 1, "a", "f:1");
        report.add("f", 1, "a", imported());
        report.refuse("a", "reasons");
        let text = report.text("title");
        for part in ["because the value at f:1 replaces it", "because reasons"] {
            assert_eq!(text.matches(part).count(), 1, "{text}");
        }
    }

    /// In quadratic time, it would take minutes.
    #[test]
    fn many_refusals_replace_the_rows_of_their_item() {
        let report = Report::default();
        for line in 1..=100_000 {
            report.add("f", line, "listener[1884]", imported());
        }
        for number in 1..=100_000 {
            report.refuse("listener[1884]", &format!("reason {number}"));
        }
        assert!(
            report
                .text("title")
                .ends_with("0 imported, 0 changed, 100000 not supported\n")
        );
    }

    #[test]
    fn a_long_name_widens_no_other_row() {
        let report = Report::default();
        let (file, item) = ("f".repeat(5000), "i".repeat(5000));
        report.add(&file, 1, &item, imported());
        report.add("g", 1, "short", imported());
        let text = report.text("title");
        let widths: Vec<usize> = text.lines().map(str::len).collect();
        assert!(widths.iter().filter(|width| **width > 200).count() == 1, "{widths:?}");
    }

    #[test]
    fn long_texts_are_shortened_and_keep_their_ends() {
        let report = Report::default();
        let long = "é".repeat(5000);
        for number in [1, 2] {
            let because = format!("of {long}");
            report.add(
                &long,
                0,
                &format!("{long} rule {number}"),
                Outcome::NotSupported { because },
            );
        }
        let text = report.text(&long);
        assert!(text.contains("é rule 1 ") && text.contains("é rule 2 "), "{text}");
        assert!(text.contains("0 imported, 0 changed, 2 not supported"), "{text}");
        assert!(text.lines().all(|line| line.len() < 4 * (TEXT_BYTES_MAX + 8)), "{text}");
    }

    #[test]
    fn names_of_files_and_items_are_printable() {
        let report = Report::default();
        report.add("mnesia/a\x1b[2J\nb", 0, "c\u{202E}d", imported());
        let text = report.text("the\x1btitle");
        assert!(text.starts_with("the\\u{1b}title\n\n"), "{text}");
        assert!(text.contains("mnesia/a\\u{1b}[2J\\nb  c\\u{202e}d  imported"), "{text}");
    }

    #[test]
    fn passwords_in_addresses_are_masked() {
        let report = Report::default();
        let because = "`http://u:hush@h:80/x@y` and mqtt://hush@h, a@b".to_owned();
        report.add("f", 0, "a", Outcome::NotSupported { because });
        let text = report.text("title");
        assert!(text.contains("`http://***@h:80/x@y` and mqtt://***@h, a@b"), "{text}");
        assert!(!text.contains("hush"), "{text}");
    }
}
