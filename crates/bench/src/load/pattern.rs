//! Patterns in client ids, user names, topics and filters, as [`crate::scenario`] defines them.
//!
//! The values of `%s` and `%{rand:N}` depend on the message, so a topic keeps gaps for them.

use super::payload::random;

/// The values of a client for the patterns.
#[derive(Clone, Debug, Default)]
pub struct PatternValues<'a> {
    pub number: u64,
    pub group: &'a str,
    pub run: u16,
    /// Empty while the client id itself is being made.
    pub client_id: &'a str,
    pub user_name: &'a str,
}

/// Marks a part that depends on the message; no topic may contain it [MQTT-4.7.3-2].
const GAP: char = '\0';
/// Digits of the longest number.
const DIGITS_MAX: usize = 10;

/// A part of a topic that differs between messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChangingPart {
    /// `%s`
    Sequence,
    /// `%{rand:N}`: 1 to N, computed from publisher and sequence number, so that it looks random and the receiver can
    /// check it.
    Random { bound: u32, seed: u64 },
}

impl ChangingPart {
    fn at(self, sequence: u32) -> u32 {
        match self {
            ChangingPart::Sequence => sequence,
            ChangingPart::Random { bound, seed } => {
                1 + (random(seed, u64::from(sequence), 0) % u64::from(bound)) as u32
            }
        }
    }
}

/// Returns N of "rand:N", the text between the braces of `%{…}`.
pub fn random_bound(name: &str) -> Option<u32> {
    name.strip_prefix("rand:")?.parse().ok().filter(|bound| *bound > 0)
}

/// Expands a pattern, with gaps for the parts that depend on the message. An unknown letter stays as it is.
fn expand_with_gaps(pattern: &str, names: &PatternValues<'_>) -> (String, Vec<ChangingPart>) {
    use std::fmt::Write;
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut changing = Vec::new();
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
            Some('s') => {
                changing.push(ChangingPart::Sequence);
                write!(out, "{GAP}")
            }
            Some('{') => match rest.as_str().split_once('}') {
                Some((name, behind)) if random_bound(name).is_some() => {
                    let bound = random_bound(name).unwrap_or(1);
                    let seed = random(u64::from(names.run), names.number, changing.len() as u64);
                    changing.push(ChangingPart::Random { bound, seed });
                    rest = behind.chars();
                    write!(out, "{GAP}")
                }
                _ => write!(out, "%{{"),
            },
            Some('%') | None => write!(out, "%"),
            Some(other) => write!(out, "%{other}"),
        };
        written.expect("a string takes everything");
    }
    (out, changing)
}

/// Expands a client id, user name or filter. These have no sequence number; a random part depends on the client.
pub fn expand(pattern: &str, names: &PatternValues<'_>) -> String {
    let (text, changing) = expand_with_gaps(pattern, names);
    changing.iter().fold(text, |text, changing| {
        let number = match changing {
            ChangingPart::Sequence => "%s".to_owned(),
            ChangingPart::Random { .. } => changing.at(0).to_string(),
        };
        text.replacen(GAP, &number, 1)
    })
}

/// A topic with the parts that depend on the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicTemplate {
    prefix: Box<str>,
    /// Each changing part with the text after it.
    changing: Box<[(ChangingPart, Box<str>)]>,
}

impl TopicTemplate {
    pub fn new(pattern: &str, names: &PatternValues<'_>) -> TopicTemplate {
        let (text, changing) = expand_with_gaps(pattern, names);
        let mut texts = text.split(GAP).map(Box::from);
        let prefix = texts.next().unwrap_or_default();
        TopicTemplate {
            prefix,
            changing: changing.into_iter().zip(texts).collect(),
        }
    }

    /// Whether every message has a different topic.
    pub fn has_sequence(&self) -> bool {
        self.changing
            .iter()
            .any(|(changing, _)| *changing == ChangingPart::Sequence)
    }

    /// Whether a filter may match some messages of the publisher and not others.
    pub fn changes(&self) -> bool {
        !self.changing.is_empty()
    }

    /// Calls `with` with the topic of message `sequence`.
    pub fn of<R>(&self, sequence: u32, scratch: &mut String, with: impl FnOnce(&str) -> R) -> R {
        use std::fmt::Write;
        if self.changing.is_empty() {
            return with(&self.prefix);
        }
        scratch.clear();
        scratch.push_str(&self.prefix);
        for (changing, behind) in &self.changing {
            write!(scratch, "{}{behind}", changing.at(sequence)).expect("a string takes everything");
        }
        with(scratch)
    }

    #[inline]
    pub fn matches(&self, topic: &str, sequence: u32) -> bool {
        match self.changing.is_empty() {
            true => *self.prefix == *topic,
            false => self.is_of(topic, sequence),
        }
    }

    fn is_of(&self, topic: &str, sequence: u32) -> bool {
        let changing = &mut self.changing.iter();
        let rest = changing.try_fold(topic.strip_prefix(&*self.prefix), |rest, (changing, behind)| {
            let mut digits = [0; DIGITS_MAX];
            let rest = rest?.strip_prefix(decimal(changing.at(sequence), &mut digits))?;
            Some(rest.strip_prefix(&**behind))
        });
        rest.flatten() == Some("")
    }

    /// Returns the levels; `None` for a level that depends on the message.
    pub fn levels(&self) -> Vec<Option<&str>> {
        let mut levels: Vec<Option<&str>> = self.prefix.split('/').map(Some).collect();
        for (_, behind) in &self.changing {
            levels.pop();
            levels.push(None);
            levels.extend(behind.split('/').skip(1).map(Some));
        }
        levels
    }

    pub fn longest(&self) -> usize {
        let changing = self.changing.iter().map(|(_, behind)| DIGITS_MAX + behind.len());
        self.prefix.len() + changing.sum::<usize>()
    }
}

/// Formats a number without `format!`, because this runs for every message that is verified.
fn decimal(mut number: u32, digits: &mut [u8; DIGITS_MAX]) -> &str {
    let mut at = DIGITS_MAX;
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return std::str::from_utf8(&digits[at..]).expect("digits are ASCII");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> PatternValues<'static> {
        PatternValues {
            number: 7,
            group: "publishers",
            run: 0xAB,
            client_id: "id",
            user_name: "user",
        }
    }

    #[test]
    fn expand_replaces_each_letter() {
        assert_eq!(
            expand("%i-%c-%u-%g-%r-100%%-%x-%s", &names()),
            "7-id-user-publishers-00ab-100%-%x-%s"
        );
    }

    #[test]
    fn topic_with_sequence_matches_its_message() {
        let topic = TopicTemplate::new("a/%i/m%s/end", &names());
        let mut scratch = String::new();
        assert_eq!(topic.of(12, &mut scratch, str::to_string), "a/7/m12/end");
        assert!(
            topic.matches("a/7/m12/end", 12) && !topic.matches("a/7/m13/end", 12) && !topic.matches("a/8/m12/end", 12)
        );
        assert_eq!(topic.levels(), [Some("a"), Some("7"), None, Some("end")]);
        let plain = TopicTemplate::new("a/%i", &names());
        assert_eq!(plain.levels(), [Some("a"), Some("7")]);
        assert!(plain.matches("a/7", 3) && !plain.matches("a/70", 3));
        let whole = TopicTemplate::new("%s", &names());
        assert_eq!(whole.levels(), [None]);
    }

    #[test]
    fn random_part_is_spread_and_repeatable() {
        let topic = TopicTemplate::new("t/%{rand:3}x/%s/y%{rand:1000}", &names());
        assert_eq!(topic.levels(), [Some("t"), None, None, None]);
        assert!(topic.has_sequence() && topic.longest() == "t/".len() + 10 + "x/".len() + 10 + "/y".len() + 10);
        let mut scratch = String::new();
        let mut seen = [0; 3];
        for sequence in 0..300 {
            let text = topic.of(sequence, &mut scratch, str::to_string);
            assert!(
                topic.matches(&text, sequence)
                    && !topic.matches(&text, sequence + 1)
                    && !topic.matches(&format!("{text}0"), sequence)
            );
            seen[usize::from(text.as_bytes()[2] - b'1')] += 1;
        }
        assert!(seen.iter().all(|count| *count > 70), "{seen:?}");
        let other = TopicTemplate::new("t/%{rand:1000000}", &PatternValues { number: 8, ..names() });
        assert_ne!(other, TopicTemplate::new("t/%{rand:1000000}", &names()));
        assert!(!other.has_sequence() && other.changes());
        let user = expand("user-%{rand:50}", &names());
        let number: u32 = user.strip_prefix("user-").unwrap().parse().unwrap();
        assert!((1..=50).contains(&number) && user == expand("user-%{rand:50}", &names()));
        assert_eq!(expand("%{rand:0}%{else", &names()), "%{rand:0}%{else");
    }
}
