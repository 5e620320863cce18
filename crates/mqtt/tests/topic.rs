//! Tests topic names, topic filters, `$share` and matching.

use proptest::prelude::*;

use crate::scale::scaled;
use tidewire_mqtt::{
    FilterError, SharedFilter, TopicError, filter_matches, has_wildcards, levels, validate_filter, validate_topic_name,
};

#[test]
fn topic_names() {
    for good in [
        "a",
        "/",
        "//",
        "a/b",
        "$SYS/x",
        " ",
        "é/€/𝄞",
        "a/\u{1}",
        "a b",
        "$share/g/a",
        "a/b/c/d/e/f/g/h/i",
    ] {
        assert_eq!(validate_topic_name(good), Ok(()), "{good}");
    }
    for bad in [
        "+",
        "#",
        "a/+",
        "a/#",
        "a+",
        "#a",
        "longer than eight+",
        "#longer than eight",
        "exactly+",
    ] {
        assert_eq!(validate_topic_name(bad), Err(TopicError::Wildcard), "{bad}");
    }
    assert_eq!(validate_topic_name(""), Err(TopicError::Empty));
    assert_eq!(validate_topic_name("a\0"), Err(TopicError::NulCharacter));
    assert_eq!(validate_topic_name("a longer\0topic"), Err(TopicError::NulCharacter));
    assert_eq!(validate_topic_name(&"a".repeat(65535)), Ok(()));
    assert_eq!(validate_topic_name(&"a".repeat(65536)), Err(TopicError::TooLong));
}

#[test]
fn special_character_is_found_at_every_position() {
    for length in 1..40 {
        for at in 0..length {
            for special in ["+", "#", "\0"] {
                let mut topic = "é".repeat(length);
                topic.replace_range(at * 2..at * 2 + 2, special);
                assert!(validate_topic_name(&topic).is_err(), "{topic:?}");
                let mut topic = "a".repeat(length);
                topic.replace_range(at..at + 1, special);
                assert!(validate_topic_name(&topic).is_err(), "{topic:?}");
                assert!(validate_topic_name(&"a".repeat(length)).is_ok());
            }
        }
    }
}

#[test]
fn topic_filters() {
    for good in [
        "a", "/", "#", "+", "/#", "/+", "+/", "+/+", "a/#", "a/+/b", "+/#", "$SYS/#", "a/+/#", "//", "é/+",
    ] {
        assert_eq!(validate_filter(good), Ok(()), "{good}");
    }
    for bad in ["a#", "#/a", "a/#/b", "##", "a/b#", "#/", "+#", "/#/"] {
        let error = if bad == "+#" {
            FilterError::SingleLevelWildcard
        } else {
            FilterError::MultiLevelWildcard
        };
        assert_eq!(validate_filter(bad), Err(error), "{bad}");
    }
    for bad in ["a+", "+a", "a/b+", "a/+b", "++", "a/+b/c", "a+/b"] {
        assert_eq!(validate_filter(bad), Err(FilterError::SingleLevelWildcard), "{bad}");
    }
    assert_eq!(validate_filter(""), Err(FilterError::Empty));
    assert_eq!(validate_filter("a\0"), Err(FilterError::NulCharacter));
    assert_eq!(validate_filter(&"/".repeat(65535)), Ok(()));
    assert_eq!(validate_filter(&"/".repeat(65536)), Err(FilterError::TooLong));
}

#[test]
fn shared_filters() {
    let shared = |share_name, filter| Ok(Some(SharedFilter { share_name, filter }));
    assert_eq!(SharedFilter::parse("$share/g/a/b"), shared("g", "a/b"));
    assert_eq!(SharedFilter::parse("$share/g/#"), shared("g", "#"));
    assert_eq!(SharedFilter::parse("$share/g//"), shared("g", "/"));
    assert_eq!(SharedFilter::parse("$share/$g/$share/h/a"), shared("$g", "$share/h/a"));
    for plain in [
        "a",
        "$share",
        "$shared/g/a",
        "share/g/a",
        "/$share/g/a",
        "$SHARE/g/a",
        "$queue/a",
    ] {
        assert_eq!(SharedFilter::parse(plain), Ok(None), "{plain}");
    }
    for bad in [
        "$share/",
        "$share//a",
        "$share/g",
        "$share/g/",
        "$share/g+/a",
        "$share/+/a",
        "$share/#/a",
        "$share/#",
    ] {
        assert_eq!(SharedFilter::parse(bad), Err(FilterError::Shared), "{bad}");
    }
}

/// The examples of section 4.7.1, and cases that other brokers handle incorrectly.
#[test]
fn matching() {
    let cases = [
        ("sport/tennis/player1/#", "sport/tennis/player1", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/ranking", true),
        ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", true),
        ("sport/tennis/player1/#", "sport/tennis/player10", false),
        ("sport/#", "sport", true),
        ("sport/#", "sport/", true),
        ("#", "a", true),
        ("#", "/", true),
        ("sport/tennis/+", "sport/tennis/player1", true),
        ("sport/tennis/+", "sport/tennis/player1/ranking", false),
        ("sport/+", "sport", false),
        ("sport/+", "sport/", true),
        ("+", "finance", true),
        ("+", "/finance", false),
        ("+/+", "/finance", true),
        ("/+", "/finance", true),
        ("/#", "/finance", true),
        ("/#", "finance", false),
        ("+/#", "a", true),
        ("a//b", "a//b", true),
        ("a/+/b", "a//b", true),
        ("a/b", "a/b/", false),
        ("a/b/", "a/b", false),
        ("a", "A", false),
        ("#", "$SYS/x", false),
        ("+/x", "$SYS/x", false),
        ("+", "$SYS", false),
        ("$SYS/#", "$SYS", true),
        ("$SYS/#", "$SYS/x/y", true),
        ("$SYS/+", "$SYS/x", true),
        ("a/#", "a/$x", true),
        ("a/+", "a/$x", true),
        ("+/+/#", "a", false),
    ];
    for (filter, topic, expected) in cases {
        assert_eq!(filter_matches(filter, topic), expected, "{filter} against {topic}");
    }
}

#[test]
fn levels_and_wildcards() {
    assert_eq!(levels("/a//").collect::<Vec<_>>(), ["", "a", "", ""]);
    assert_eq!(levels("a").collect::<Vec<_>>(), ["a"]);
    assert!(has_wildcards("a/+") && has_wildcards("#") && !has_wildcards("a/b"));
}

/// Another implementation of matching: recursive, on lists of levels.
fn matches_recursively(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) => true,
        ([], []) => true,
        (["+", filter @ ..], [_, topic @ ..]) => matches_recursively(filter, topic),
        ([a, filter @ ..], [b, topic @ ..]) => a == b && matches_recursively(filter, topic),
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(scaled(3_000) as u32))]

    #[test]
    fn matching_agrees_with_the_other_way(
        filter in prop::collection::vec(prop::sample::select(&["", "a", "b", "+", "$x"][..]), 1..6),
        topic in prop::collection::vec(prop::sample::select(&["", "a", "b", "$x"][..]), 1..6),
        has_hash in any::<bool>(),
    ) {
        let mut filter = filter;
        if has_hash {
            filter.push("#");
        }
        let is_hidden = topic[0].starts_with('$') && matches!(filter[0], "+" | "#");
        let expected = !is_hidden && matches_recursively(&filter, &topic);
        prop_assert_eq!(filter_matches(&filter.join("/"), &topic.join("/")), expected);
    }

    #[test]
    fn validation_agrees_with_the_rules_level_by_level(filter in "[a/+#$\0]{0,12}") {
        let all: Vec<&str> = levels(&filter).collect();
        let is_valid = !filter.is_empty()
            && !filter.contains('\0')
            && all.iter().enumerate().all(|(i, level)| match *level {
                "+" => true,
                "#" => i + 1 == all.len(),
                level => !has_wildcards(level),
            });
        prop_assert_eq!(validate_filter(&filter).is_ok(), is_valid);
        let is_name = !filter.is_empty() && !filter.contains(['\0', '+', '#']);
        prop_assert_eq!(validate_topic_name(&filter).is_ok(), is_name);
        if is_name {
            prop_assert!(filter_matches(&filter, &filter));
        }
    }
}
