//! Patterns in client ids, user names, topics and filters, as [`crate::scenario`] defines them.
//!
//! `%s` is the one part that is not known before a message is made: a topic keeps a gap for it.

/// What a client is called by the patterns.
#[derive(Clone, Debug, Default)]
pub struct Names<'a> {
    pub number: u64,
    pub group: &'a str,
    pub run: u16,
    /// Empty while it is itself being made.
    pub client_id: &'a str,
    pub user_name: &'a str,
}

/// Stands for `%s` between expansion and use; no topic may hold it [MQTT-4.7.3-2].
const GAP: char = '\0';

/// Everything but `%s`, which stays a gap. An unknown letter stays as it is.
fn expand_with_gaps(pattern: &str, names: &Names<'_>) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        if char != '%' {
            out.push(char);
            continue;
        }
        let written = match rest.next() {
            Some('i') => write!(out, "{}", names.number),
            Some('c') => write!(out, "{}", names.client_id),
            Some('u') => write!(out, "{}", names.user_name),
            Some('g') => write!(out, "{}", names.group),
            Some('r') => write!(out, "{:04x}", names.run),
            Some('s') => write!(out, "{GAP}"),
            Some('%') | None => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
        };
        written.expect("a string takes everything");
    }
    out
}

/// For client ids, user names and filters, where there is no sequence number.
pub fn expand(pattern: &str, names: &Names<'_>) -> String {
    expand_with_gaps(pattern, names).replace(GAP, "%s")
}

/// A topic, with at most one sequence number in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    prefix: Box<str>,
    /// What follows the sequence number, if there is one.
    suffix: Option<Box<str>>,
}

impl Topic {
    pub fn new(pattern: &str, names: &Names<'_>) -> Topic {
        let text = expand_with_gaps(pattern, names);
        match text.split_once(GAP) {
            None => Topic {
                prefix: text.into(),
                suffix: None,
            },
            Some((prefix, suffix)) => Topic {
                prefix: prefix.into(),
                suffix: Some(suffix.replace(GAP, "%s").into()),
            },
        }
    }

    pub fn has_sequence(&self) -> bool {
        self.suffix.is_some()
    }

    /// Calls `with` with the topic of message `sequence`.
    pub fn of<R>(&self, sequence: u32, scratch: &mut String, with: impl FnOnce(&str) -> R) -> R {
        use std::fmt::Write;
        let Some(suffix) = &self.suffix else {
            return with(&self.prefix);
        };
        scratch.clear();
        write!(scratch, "{}{sequence}{suffix}", self.prefix).expect("a string takes everything");
        with(scratch)
    }

    #[inline]
    pub fn is(&self, topic: &str, sequence: u32) -> bool {
        match &self.suffix {
            None => *self.prefix == *topic,
            Some(suffix) => {
                let number = topic
                    .strip_prefix(&*self.prefix)
                    .and_then(|rest| rest.strip_suffix(&**suffix));
                number.and_then(|number| number.parse().ok()) == Some(sequence)
            }
        }
    }

    /// The levels, `None` for one that changes with the sequence number.
    pub fn levels(&self) -> impl Iterator<Item = Option<&str>> {
        let (before, gap, after) = match &self.suffix {
            None => (Some(&*self.prefix), None, None),
            Some(suffix) => {
                let before = self.prefix.rsplit_once('/').map(|(before, _)| before);
                (before, Some(None), suffix.split_once('/').map(|(_, after)| after))
            }
        };
        let before = before.into_iter().flat_map(|part| part.split('/')).map(Some);
        let after = after.into_iter().flat_map(|part| part.split('/')).map(Some);
        before.chain(gap).chain(after)
    }

    pub fn longest(&self) -> usize {
        self.prefix.len() + self.suffix.as_ref().map_or(0, |suffix| suffix.len() + 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names<'static> {
        Names {
            number: 7,
            group: "publishers",
            run: 0xAB,
            client_id: "id",
            user_name: "user",
        }
    }

    #[test]
    fn every_letter_has_its_value() {
        assert_eq!(
            expand("%i-%c-%u-%g-%r-100%%-%x-%s", &names()),
            "7-id-user-publishers-00ab-100%-%x-%s"
        );
    }

    #[test]
    fn a_topic_knows_its_sequence_number() {
        let topic = Topic::new("a/%i/m%s/end", &names());
        let mut scratch = String::new();
        assert_eq!(topic.of(12, &mut scratch, str::to_string), "a/7/m12/end");
        assert!(topic.is("a/7/m12/end", 12) && !topic.is("a/7/m13/end", 12) && !topic.is("a/8/m12/end", 12));
        let levels: Vec<_> = topic.levels().collect();
        assert_eq!(levels, [Some("a"), Some("7"), None, Some("end")]);
        let plain = Topic::new("a/%i", &names());
        assert_eq!(plain.levels().collect::<Vec<_>>(), [Some("a"), Some("7")]);
        assert!(plain.is("a/7", 3) && !plain.is("a/70", 3));
        let whole = Topic::new("%s", &names());
        assert_eq!(whole.levels().collect::<Vec<_>>(), [None]);
    }
}
