//! Relations between two topic filters as sets of topics. Filters must be well-formed and without `$share`.

/// Returns whether `wide` matches every topic that `narrow` matches.
pub fn filter_covers(wide: &str, narrow: &str) -> bool {
    if starts_with_wildcard(wide) && narrow.starts_with('$') {
        return false; // [MQTT-4.7.2-1]
    }
    let mut narrow_levels = expanded(narrow).split('/');
    for wide_level in wide.split('/') {
        if wide_level == "#" {
            return true;
        }
        let is_covered = match narrow_levels.next() {
            None | Some("#") => false,
            Some("+") => wide_level == "+",
            Some(literal) => wide_level == "+" || wide_level == literal,
        };
        if !is_covered {
            return false;
        }
    }
    narrow_levels.next().is_none()
}

/// Returns whether some topic matches both filters.
pub fn filters_overlap(a: &str, b: &str) -> bool {
    if (starts_with_wildcard(a) && b.starts_with('$')) || (starts_with_wildcard(b) && a.starts_with('$')) {
        return false; // [MQTT-4.7.2-1]
    }
    let (mut a_levels, mut b_levels) = (expanded(a).split('/'), expanded(b).split('/'));
    loop {
        match (a_levels.next(), b_levels.next()) {
            (None, None) | (Some("#"), _) | (_, Some("#")) => return true,
            (None, Some(_)) | (Some(_), None) => return false,
            (Some("+"), Some(_)) | (Some(_), Some("+")) => {}
            (Some(a_level), Some(b_level)) if a_level == b_level => {}
            (Some(_), Some(_)) => return false,
        }
    }
}

/// Expands `#` where it must match at least one level, because no topic is empty [MQTT-4.7.3-1].
fn expanded(filter: &str) -> &str {
    match filter {
        "#" => "+/#",
        "/#" => "/+/#",
        other => other,
    }
}

/// Returns whether the filter starts with a wildcard, so that it matches no topic that begins with `$` [MQTT-4.7.2-1].
pub fn starts_with_wildcard(filter: &str) -> bool {
    filter.starts_with(['+', '#'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Matching as defined in section 4.7, level by level.
    fn naive_matches(filter: &str, topic: &str) -> bool {
        fn levels(filter: &[&str], topic: &[&str]) -> bool {
            match (filter, topic) {
                (["#"], _) => true,
                (["+", filter @ ..], [_, topic @ ..]) => levels(filter, topic),
                ([f, filter @ ..], [t, topic @ ..]) => f == t && levels(filter, topic),
                ([], []) => true,
                _ => false,
            }
        }
        let is_hidden = starts_with_wildcard(filter) && topic.starts_with('$');
        !is_hidden
            && levels(
                &filter.split('/').collect::<Vec<_>>(),
                &topic.split('/').collect::<Vec<_>>(),
            )
    }

    /// Returns all sequences of 1 to `depth` levels from `alphabet`.
    fn sequences(alphabet: &[&str], depth: usize) -> Vec<String> {
        let mut all: Vec<Vec<&str>> = vec![vec![]];
        let mut last = all.clone();
        for _ in 0..depth {
            last = last
                .iter()
                .flat_map(|s| alphabet.iter().map(move |l| [s.as_slice(), &[*l]].concat()))
                .collect();
            all.extend(last.clone());
        }
        let joined = all
            .into_iter()
            .filter(|levels| !levels.is_empty())
            .map(|levels| levels.join("/"));
        joined.filter(|text| !text.is_empty()).collect()
    }

    fn filters() -> Vec<String> {
        let mut filters = sequences(&["", "a", "$s", "+"], 3);
        for prefix in sequences(&["", "a", "$s", "+"], 2) {
            filters.push(format!("{prefix}/#"));
        }
        filters.extend(["#".into(), "/#".into()]);
        filters
    }

    /// `z` and `$z` occur in no filter: they represent the rest of an infinite alphabet. Topics have one level more
    /// than any filter.
    fn topics() -> Vec<String> {
        sequences(&["", "a", "z", "$s", "$z"], 4)
    }

    #[test]
    fn covers_and_overlaps_agree_with_enumeration() {
        let (filters, topics) = (filters(), topics());
        let matched: Vec<Vec<bool>> = filters
            .iter()
            .map(|filter| topics.iter().map(|topic| naive_matches(filter, topic)).collect())
            .collect();
        let (mut covered, mut overlapping) = (0, 0);
        for (a, a_matches) in filters.iter().zip(&matched) {
            for (b, b_matches) in filters.iter().zip(&matched) {
                let covers = a_matches.iter().zip(b_matches).all(|(a, b)| *a || !*b);
                let overlaps = a_matches.iter().zip(b_matches).any(|(a, b)| *a && *b);
                assert_eq!(filter_covers(a, b), covers, "{a} covers {b}");
                assert_eq!(filters_overlap(a, b), overlaps, "{a} overlaps {b}");
                covered += usize::from(covers);
                overlapping += usize::from(overlaps);
            }
        }
        // The enumeration covers both results.
        assert!(covered > filters.len() && overlapping > covered && overlapping < filters.len() * filters.len());
    }

    #[test]
    fn covers_and_overlaps_handle_corner_cases() {
        assert!(filter_covers("+/#", "#"));
        assert!(filter_covers("/+/#", "/#"));
        assert!(!filters_overlap("+", "/#"));
        assert!(!filter_covers("x/+/#", "x/#"));
        assert!(filter_covers("x/#", "x"));
        assert!(!filter_covers("#", "$SYS/#"));
        assert!(!filter_covers("+/x", "$SYS/x"));
        assert!(filter_covers("$SYS/#", "$SYS/+/x"));
        assert!(!filters_overlap("#", "$SYS/#"));
        assert!(filters_overlap("a/+/c", "a/b/#"));
        assert!(!filters_overlap("a/+", "a/b/c"));
    }
}
