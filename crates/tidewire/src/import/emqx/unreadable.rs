//! Records of a table that cannot be read: their number and the reasons, for one row of the report or an error.

use std::collections::BTreeMap;

use crate::import::report::{Outcome, Report};
use crate::journal_command::summary::count;

/// Maximum number of reasons in the row. Reasons can contain texts of the archive.
const REASONS_MAX: usize = 8;
const OTHER_REASONS: &str = "other reasons";

#[derive(Default)]
pub struct Unreadable {
    reasons: BTreeMap<String, usize>,
}

impl Unreadable {
    pub fn add(&mut self, because: String) {
        let is_full = self.reasons.len() >= REASONS_MAX && !self.reasons.contains_key(&because);
        let because = if is_full { OTHER_REASONS.to_owned() } else { because };
        *self.reasons.entry(because).or_default() += 1;
    }

    /// Returns the number of the records with their noun, and the reasons. `None`: there are no such records.
    pub fn summary(self, noun: &str) -> Option<(String, String)> {
        let total: usize = self.reasons.values().sum();
        if total == 0 {
            return None;
        }
        let reasons: Vec<String> = match self.reasons.len() {
            1 => self.reasons.into_keys().collect(),
            _ => {
                let each = self.reasons.into_iter();
                each.map(|(because, number)| format!("{because} ({number})")).collect()
            }
        };
        Some((count(total, noun), reasons.join("; ")))
    }

    /// Adds the row to the report, if there are such records.
    pub fn report(self, file: &str, noun: &str, report: &Report) {
        if let Some((item, because)) = self.summary(&format!("unreadable {noun}")) {
            report.add(file, 0, &item, Outcome::NotSupported { because });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_counted_by_reason() {
        let report = Report::default();
        Unreadable::default().report("f", "ban", &report);
        let mut unreadable = Unreadable::default();
        for because in ["no end", "no address", "no end"] {
            unreadable.add(because.to_owned());
        }
        unreadable.report("f", "ban", &report);
        let text = report.text("title");
        let expected = "3 unreadable bans  not supported  because no address (1); no end (2)";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("1 not supported"), "{text}");
    }

    #[test]
    fn the_number_of_reasons_is_bounded() {
        let report = Report::default();
        let mut unreadable = Unreadable::default();
        for number in 0..1000 {
            unreadable.add(format!("reason {number}"));
        }
        unreadable.report("f", "user", &report);
        let text = report.text("title");
        assert!(
            text.contains("1000 unreadable users") && text.contains("other reasons (992)"),
            "{text}"
        );
    }
}
