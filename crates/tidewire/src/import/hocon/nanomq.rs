//! Repeated keys as NanoMQ reads them (`hocon.c` of NanoNNG).
//!
//! In one object, the last value counts, as in HOCON. Keys with dots come behind the others of their object. Repeated
//! objects merge, but the values of the first one count. Of objects in them, those of the last one count, and so on.

use super::{Node, Object, Replaced, Value, joined, note_replaced};

/// Merges repeated keys in an object and all objects in it.
pub fn settle(object: &mut Object, path: &str, replaced: &mut Vec<Replaced>) {
    let mut entries = std::mem::take(&mut object.entries);
    entries.append(&mut object.dotted);
    for (word, mut node) in entries {
        let full = joined(path, &word);
        settle_value(&mut node.value, &full, replaced);
        match object.index.get(&word).copied() {
            None => object.push(word, node),
            Some(at) => put(&mut object.entries[at].1, node, &full, Counts::Later, replaced),
        }
    }
}

fn settle_value(value: &mut Value, path: &str, replaced: &mut Vec<Replaced>) {
    match value {
        Value::Object(object) => settle(object, path, replaced),
        Value::List(items) => {
            for (index, node) in items.iter_mut().enumerate() {
                settle_value(&mut node.value, &format!("{path}[{}]", index + 1), replaced);
            }
        }
        Value::Scalar { .. } => {}
    }
}

/// Which of two values counts.
#[derive(Clone, Copy)]
enum Counts {
    Earlier,
    Later,
}

/// Puts a later value where an earlier one is. Values in objects count the other way round.
fn put(earlier: &mut Node, later: Node, path: &str, counts: Counts, replaced: &mut Vec<Replaced>) {
    let inner = match counts {
        Counts::Earlier => Counts::Later,
        Counts::Later => Counts::Earlier,
    };
    if matches!((&earlier.value, &later.value), (Value::Object(_), Value::Object(_))) {
        if let (Value::Object(base), Value::Object(object)) = (&mut earlier.value, later.value) {
            merge(base, object, path, inner, replaced);
        }
        return;
    }
    match counts {
        Counts::Earlier => note_replaced(&later, path, earlier.place, replaced),
        Counts::Later => {
            note_replaced(earlier, path, later.place, replaced);
            *earlier = later;
        }
    }
}

fn merge(base: &mut Object, object: Object, path: &str, counts: Counts, replaced: &mut Vec<Replaced>) {
    for (word, node) in object.entries {
        match base.index.get(&word).copied() {
            None => base.push(word, node),
            Some(at) => put(&mut base.entries[at].1, node, &joined(path, &word), counts, replaced),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Hocon, Repeats};
    use super::*;

    /// Returns the text and line of a value, and the replaced lines with those that replace them.
    #[track_caller]
    fn read(text: &str, path: &str) -> (String, usize, Vec<(usize, usize)>) {
        let hocon = Hocon::parse_with(Repeats::NanoMq, "f", text, &|_| Err(String::new())).expect("valid");
        let node = path.split('.').fold(&hocon.root, |node, word| match &node.value {
            Value::Object(object) => object.get(word).unwrap_or_else(|| panic!("{word} of {path}")),
            _ => panic!("{path}"),
        });
        let Value::Scalar { text, .. } = &node.value else {
            panic!("{node:?}");
        };
        let replaced = hocon.replaced.iter().map(|one| (one.place.line, one.by.line));
        (text.clone(), node.place.line, replaced.collect())
    }

    #[test]
    fn value_that_counts_depends_on_the_depth() {
        for (text, path, value, line, replaced) in [
            ("a = 1\na = 2\na = 3", "a", "3", 3, vec![(1, 2), (2, 3)]),
            ("a { b = 1\nb = 2 }", "a.b", "2", 2, vec![(1, 2)]),
            ("a { b = 1 }\na { b = 2 }", "a.b", "1", 1, vec![(2, 1)]),
            (
                "a { b = 1 }\na { b = 2 }\na { b = 3 }",
                "a.b",
                "1",
                1,
                vec![(2, 1), (3, 1)],
            ),
            ("a { b { c = 1 } }\na { b { c = 2 } }", "a.b.c", "2", 2, vec![(1, 2)]),
            ("a.b = 1\na.b = 2", "a.b", "1", 1, vec![(2, 1)]),
            // The key with a dot comes behind the other one.
            ("a.b = 1\na { b = 2 }", "a.b", "2", 2, vec![(1, 2)]),
            ("a = 1\na { b = 2 }", "a.b", "2", 2, vec![(1, 2)]),
            ("a { b = 1 }\na { c = 2 }", "a.c", "2", 2, vec![]),
        ] {
            assert_eq!(read(text, path), (value.to_owned(), line, replaced), "{text}");
        }
    }

    #[test]
    fn objects_in_lists_are_merged() {
        let text = "l = [{ a { b = 1 }\na { b = 2 } }]";
        let hocon = Hocon::parse_with(Repeats::NanoMq, "f", text, &|_| Err(String::new())).expect("valid");
        let replaced: Vec<&str> = hocon.replaced.iter().map(|one| one.key.as_str()).collect();
        assert_eq!(replaced, ["l[1].a.b"]);
    }
}
