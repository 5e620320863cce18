//! Suggestions ("did you mean") of the nearest known word.

/// Returns the closest of `known`, unless it differs too much.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let limit = 1 + word.chars().count() / 3;
    let near = known
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate));
    near.filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Edit distance of single characters, including swaps of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before_last[j - 2] + 1);
            }
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_are_matched_and_other_words_are_not() {
        const KNOWN: [&str; 4] = ["topic", "payload", "qos", "retain"];
        assert_eq!(nearest("topc", KNOWN), Some("topic"));
        assert_eq!(nearest("paylaod", KNOWN), Some("payload"));
        assert_eq!(nearest("Retain", KNOWN), Some("retain"));
        assert_eq!(nearest("colour", KNOWN), None);
        assert_eq!(nearest(&"x".repeat(10_000), KNOWN), None);
    }
}
