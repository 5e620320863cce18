//! Patterns in client ids, user names, topics and filters, as [`crate::scenario`] defines them.
//!
//! `%s` and `%{rand:N}` are not known before a message is made: a topic keeps gaps for them.

use super::payload::random;

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

/// Stands for a part that changes between expansion and use; no topic may hold it [MQTT-4.7.3-2].
const GAP: char = '\0';
/// The longest number.
const DIGITS_MAX: usize = 10;

/// A part of a topic that is another with every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changing {
    /// `%s`
    Sequence,
    /// `%{rand:N}`: from 1 to N, by publisher and sequence number alone, so that it looks random and can be checked all the same.
    Random { bound: u32, seed: u64 },
}

impl Changing {
    fn at(self, sequence: u32) -> u32 {
        match self {
            Changing::Sequence => sequence,
            Changing::Random { bound, seed } => 1 + (random(seed, u64::from(sequence), 0) % u64::from(bound)) as u32,
        }
    }
}

/// N of "rand:N", what stands between the braces of `%{…}`.
pub fn random_bound(name: &str) -> Option<u32> {
    name.strip_prefix("rand:")?.parse().ok().filter(|bound| *bound > 0)
}

/// Everything but what changes, for which there are gaps. An unknown letter stays as it is.
fn expand_with_gaps(pattern: &str, names: &Names<'_>) -> (String, Vec<Changing>) {
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
                changing.push(Changing::Sequence);
                write!(out, "{GAP}")
            }
            Some('{') => match rest.as_str().split_once('}') {
                Some((name, behind)) if random_bound(name).is_some() => {
                    let bound = random_bound(name).unwrap_or(1);
                    let seed = random(u64::from(names.run), names.number, changing.len() as u64);
                    changing.push(Changing::Random { bound, seed });
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

/// For client ids, user names and filters, which have no sequence number, and where what is random is so per client.
pub fn expand(pattern: &str, names: &Names<'_>) -> String {
    let (text, changing) = expand_with_gaps(pattern, names);
    changing.iter().fold(text, |text, changing| {
        let number = match changing {
            Changing::Sequence => "%s".to_owned(),
            Changing::Random { .. } => changing.at(0).to_string(),
        };
        text.replacen(GAP, &number, 1)
    })
}

/// A topic, with what changes in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topic {
    prefix: Box<str>,
    /// Each with the text behind it.
    changing: Box<[(Changing, Box<str>)]>,
}

impl Topic {
    pub fn new(pattern: &str, names: &Names<'_>) -> Topic {
        let (text, changing) = expand_with_gaps(pattern, names);
        let mut texts = text.split(GAP).map(Box::from);
        let prefix = texts.next().unwrap_or_default();
        Topic {
            prefix,
            changing: changing.into_iter().zip(texts).collect(),
        }
    }

    /// Whether every message has a topic of its own.
    pub fn has_sequence(&self) -> bool {
        self.changing
            .iter()
            .any(|(changing, _)| *changing == Changing::Sequence)
    }

    /// Whether a filter may match some messages and others not.
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
    pub fn is(&self, topic: &str, sequence: u32) -> bool {
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

    /// The levels, `None` for one that changes.
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

/// Without the machinery of `format!`, for every message that is verified.
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
        assert_eq!(topic.levels(), [Some("a"), Some("7"), None, Some("end")]);
        let plain = Topic::new("a/%i", &names());
        assert_eq!(plain.levels(), [Some("a"), Some("7")]);
        assert!(plain.is("a/7", 3) && !plain.is("a/70", 3));
        let whole = Topic::new("%s", &names());
        assert_eq!(whole.levels(), [None]);
    }

    #[test]
    fn what_is_random_is_spread_and_can_be_checked() {
        let topic = Topic::new("t/%{rand:3}x/%s/y%{rand:1000}", &names());
        assert_eq!(topic.levels(), [Some("t"), None, None, None]);
        assert!(topic.has_sequence() && topic.longest() == "t/".len() + 10 + "x/".len() + 10 + "/y".len() + 10);
        let mut scratch = String::new();
        let mut seen = [0; 3];
        for sequence in 0..300 {
            let text = topic.of(sequence, &mut scratch, str::to_string);
            assert!(
                topic.is(&text, sequence) && !topic.is(&text, sequence + 1) && !topic.is(&format!("{text}0"), sequence)
            );
            seen[usize::from(text.as_bytes()[2] - b'1')] += 1;
        }
        assert!(seen.iter().all(|count| *count > 70), "{seen:?}");
        let other = Topic::new("t/%{rand:1000000}", &Names { number: 8, ..names() });
        assert_ne!(other, Topic::new("t/%{rand:1000000}", &names()));
        assert!(!other.has_sequence() && other.changes());
        let user = expand("user-%{rand:50}", &names());
        let number: u32 = user.strip_prefix("user-").unwrap().parse().unwrap();
        assert!((1..=50).contains(&number) && user == expand("user-%{rand:50}", &names()));
        assert_eq!(expand("%{rand:0}%{else", &names()), "%{rand:0}%{else");
    }
}
