//! Walks a configuration in HOCON and notes what became of each value. A value that no conversion asks for is reported
//! as not supported, so that every line is accounted for.

use serde_json::Value as Json;

use super::hocon::{Hocon, Node, Place, Value, joined};
use super::report::{Outcome, Report};

const NO_SUCH_OPTION: &str = "tidewire has no such option";
const NO_BOOLEAN: &str = "its value is neither true nor false";

/// A value of the configuration, or the place where one could be.
#[derive(Clone)]
pub struct Setting<'a> {
    pub path: String,
    node: Option<&'a Node>,
    files: &'a [String],
    report: &'a Report,
}

impl<'a> Setting<'a> {
    pub fn root(hocon: &'a Hocon, report: &'a Report) -> Setting<'a> {
        let root = Setting {
            path: String::new(),
            node: Some(&hocon.root),
            files: &hocon.files,
            report,
        };
        for replaced in &hocon.replaced {
            let Place { file, line } = replaced.place;
            report.add_replaced(&root.files[file], line, &replaced.key, &root.shown(replaced.by));
        }
        root
    }

    /// Reports every value that has no outcome yet.
    pub fn finish(&self) {
        self.refuse(NO_SUCH_OPTION);
    }

    pub fn get(&self, key: &str) -> Setting<'a> {
        let node = match self.node.map(|node| &node.value) {
            Some(Value::Object(object)) => object.get(key),
            _ => None,
        };
        self.child(joined(&self.path, key), node)
    }

    /// Follows a path of keys without dots in them.
    pub fn at(&self, path: &str) -> Setting<'a> {
        path.split('.').fold(self.clone(), |setting, key| setting.get(key))
    }

    /// Returns the entries of an object.
    pub fn entries(&self) -> Vec<(&'a str, Setting<'a>)> {
        let Some(Value::Object(object)) = self.node.map(|node| &node.value) else {
            return Vec::new();
        };
        let entry = |(key, node): &'a (String, Node)| (key.as_str(), self.child(joined(&self.path, key), Some(node)));
        object.entries.iter().map(entry).collect()
    }

    /// Returns the items of a list. A single value counts as a list of one.
    pub fn items(&self) -> Vec<Setting<'a>> {
        match self.node.map(|node| &node.value) {
            Some(Value::List(items)) => {
                let item = |(index, node)| self.child(format!("{}[{}]", self.path, index + 1), Some(node));
                items.iter().enumerate().map(item).collect()
            }
            Some(_) => vec![self.clone()],
            None => Vec::new(),
        }
    }

    fn child(&self, path: String, node: Option<&'a Node>) -> Setting<'a> {
        Setting {
            path,
            node,
            files: self.files,
            report: self.report,
        }
    }

    pub fn exists(&self) -> bool {
        self.node.is_some()
    }

    pub fn is_object(&self) -> bool {
        matches!(self.node.map(|node| &node.value), Some(Value::Object(_)))
    }

    /// Returns the text of a scalar as typed; nothing for `null`.
    pub fn text(&self) -> Option<&'a str> {
        match &self.node?.value {
            Value::Scalar { text, is_quoted, .. } if *is_quoted || text != "null" => Some(text),
            _ => None,
        }
    }

    /// Returns the text, if it is not empty.
    pub fn filled(&self) -> Option<&'a str> {
        self.text().filter(|text| !text.is_empty())
    }

    pub fn is(&self, expected: &str) -> bool {
        self.text() == Some(expected)
    }

    /// Returns a boolean, or `default` without a value. A value that is not a boolean is reported and an error.
    pub fn flag(&self, default: bool) -> Result<bool, String> {
        match self.text() {
            _ if !self.exists() => Ok(default),
            Some("true" | "on" | "yes" | "1") => Ok(true),
            Some("false" | "off" | "no" | "0") => Ok(false),
            _ => {
                self.refuse(NO_BOOLEAN);
                Err(format!("{}: {NO_BOOLEAN}", self.path))
            }
        }
    }

    pub fn number(&self) -> Option<u64> {
        self.text()?.parse().ok()
    }

    pub fn json(&self) -> Json {
        self.node.map_or(Json::Null, json)
    }

    /// Notes the outcome of a part of a text that has several lines. Lines of the text begin with 1.
    pub fn note_line(&self, line: usize, item: &str, outcome: Outcome) {
        let Some(node) = self.node else { return };
        let line = match &node.value {
            Value::Scalar {
                block_line: Some(first),
                ..
            } => first + line - 1,
            _ => node.place.line,
        };
        let place = Place { line, ..node.place };
        self.note(place, &format!("{} {item}", self.path), outcome);
    }

    fn shown(&self, place: Place) -> String {
        format!("{}:{}", self.files[place.file], place.line)
    }

    /// Notes the outcome of a value that the configuration does not have.
    pub fn note_missing(&self, outcome: Outcome) {
        let file = self.files.first().map_or("", String::as_str);
        self.report.add(file, 0, &self.path, outcome);
    }

    /// Notes the outcome of all values below that have none yet.
    pub fn note_all(&self, outcome: &Outcome) {
        if let Some(node) = self.node {
            self.walk(node, &self.path, outcome);
        }
    }

    pub fn imported(&self, to: &str) {
        self.note_all(&Outcome::Imported(to.to_owned()));
    }

    pub fn changed(&self, to: &str, because: &str) {
        self.note_all(&Outcome::Changed {
            to: to.to_owned(),
            because: because.to_owned(),
        });
    }

    pub fn refuse(&self, because: &str) {
        self.note_all(&Outcome::NotSupported {
            because: because.to_owned(),
        });
    }

    /// As `refuse`, also for values below that have an outcome: their whole is left out.
    pub fn refuse_all(&self, because: &str) {
        self.report.replace(&self.path, because);
        self.refuse(because);
    }

    fn walk(&self, node: &Node, path: &str, outcome: &Outcome) {
        match &node.value {
            Value::Object(object) if !object.entries.is_empty() => {
                for (key, node) in &object.entries {
                    self.walk(node, &joined(path, key), outcome);
                }
            }
            Value::List(items) if !items.is_empty() => {
                for (index, node) in items.iter().enumerate() {
                    self.walk(node, &format!("{path}[{}]", index + 1), outcome);
                }
            }
            _ => self.note(node.place, path, outcome.clone()),
        }
    }

    fn note(&self, place: Place, path: &str, outcome: Outcome) {
        self.report.add(&self.files[place.file], place.line, path, outcome);
    }
}

fn json(node: &Node) -> Json {
    match &node.value {
        Value::Scalar {
            text, is_quoted: true, ..
        } => Json::String(text.clone()),
        Value::Scalar { text, .. } => match text.as_str() {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            text => match text.parse::<serde_json::Number>() {
                Ok(number) => Json::Number(number),
                Err(_) => Json::String(text.to_owned()),
            },
        },
        Value::List(items) => Json::Array(items.iter().map(json).collect()),
        Value::Object(object) => {
            let fields = object.entries.iter().map(|(key, node)| (key.clone(), json(node)));
            Json::Object(fields.collect())
        }
    }
}

/// Converts a duration such as `15s`, `1h30m` or a number of milliseconds to milliseconds.
pub fn duration_ms(text: &str) -> Option<u64> {
    if let Ok(number) = text.parse::<u64>() {
        return Some(number);
    }
    let mut rest = text.trim();
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(rest.len());
        let factor = match rest[..letters].to_ascii_lowercase().as_str() {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "w" => 7 * 86_400_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(factor)?)?;
        rest = rest[letters..].trim_start();
    }
    Some(total)
}

/// Converts a size such as `1MB` to bytes. Both brokers count 1024 bytes as 1 KB.
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().ok()?;
    let factor = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" | "k" => 1 << 10,
        "mb" | "m" => 1 << 20,
        "gb" | "g" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

/// Writes bytes with the largest unit that is exact.
pub fn byte_text(bytes: u64) -> String {
    for (unit, factor) in [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{}{unit}", bytes / factor);
        }
    }
    format!("{bytes}B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_converted() {
        assert_eq!(duration_ms("1h30m"), Some(5_400_000));
        assert_eq!(duration_ms("1500"), Some(1500));
        assert_eq!(duration_ms("infinity"), None);
        assert_eq!(bytes("1MB").map(byte_text).as_deref(), Some("1MiB"));
        assert_eq!(bytes("1000").map(byte_text).as_deref(), Some("1000B"));
        assert_eq!(bytes("many"), None);
    }

    #[test]
    fn parts_of_a_refused_whole_are_refused() {
        let hocon = Hocon::parse("f", "a { b = 1, c = [{d = 2}] }\nab = 3", &|_| Err(String::new())).expect("valid");
        let report = Report::default();
        let root = Setting::root(&hocon, &report);
        root.at("a.b").imported("x");
        root.get("a").get("c").items()[0].get("d").imported("y");
        root.get("ab").imported("z");
        root.get("a").refuse_all("reasons");
        let text = report.text("title");
        assert_eq!(text.matches("because reasons").count(), 2, "{text}");
        assert!(text.contains("imported       z"), "{text}");
    }

    #[test]
    fn a_wrong_boolean_is_reported_and_an_error() {
        let text = "a = yes\nb = maybe\nc = []\nd = null\ne = \"off\"";
        let hocon = Hocon::parse("f", text, &|_| Err(String::new())).expect("valid");
        let report = Report::default();
        let root = Setting::root(&hocon, &report);
        let flags: Vec<_> = ["a", "b", "c", "d", "e", "missing"]
            .iter()
            .map(|key| root.get(key).flag(true).ok())
            .collect();
        assert_eq!(flags, [Some(true), None, None, None, Some(false), Some(true)]);
        assert!(root.get("b").flag(true).is_err());
        root.get("b").imported("x");
        root.get("e").imported("x");
        let text = report.text("title");
        for line in ["f:2", "f:3", "f:4"] {
            let row = text.lines().find(|row| row.starts_with(line)).unwrap_or_default();
            assert!(row.contains("neither true nor false"), "{line}\n{text}");
        }
        assert_eq!(text.matches("neither true nor false").count(), 3, "{text}");
    }

    #[test]
    fn values_that_nothing_asks_for_are_reported() {
        let text = "a { b = 1\nc = [x, y]\n}\nd {}\na.b = 2";
        let hocon = Hocon::parse("f", text, &|_| Err(String::new())).expect("valid");
        let report = Report::default();
        let root = Setting::root(&hocon, &report);
        root.at("a.b").imported("x.b");
        root.finish();
        let text = report.text("title");
        for row in [
            "f:2    a.c[1]  not",
            "f:2    a.c[2]  not",
            "f:4    d       not",
            "f:5    a.b     imported",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(text.contains("the value at f:5 replaces it"), "{text}");
        assert!(text.ends_with("1 imported, 0 changed, 4 not supported\n"), "{text}");
    }
}
