//! Suggestions ("did you mean") of the nearest known word.

/// Returns the closest of `known`, unless it differs too much.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const WORD_BYTES_MAX: usize = 64;
    if word.len() > WORD_BYTES_MAX {
        return None;
    }
    let distance_max = (word.chars().count() / 3).max(1);
    let near = known
        .into_iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), candidate));
    near.filter(|(distance, _)| *distance <= distance_max)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
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
        assert_eq!(nearest("foo", KNOWN), None);
        assert_eq!(nearest(&"x".repeat(10_000), KNOWN), None);
    }
}
