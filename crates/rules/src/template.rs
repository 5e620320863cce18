//! Texts with placeholders, filled in from the output of a rule: `${payload.t}`, `${.clientid}`, `${.}`, `${list[1]}`.
//!
//! `${$}` stands for a dollar sign. What a placeholder does not find is `undefined`, `null` or nothing, as the caller wants.

use std::borrow::Cow;
use std::fmt;

use crate::access::{self, Place};
use crate::error::{Position, RuleError};
use crate::functions::to_text;
use crate::json::{self, JsonForm, JsonLimits};
use crate::text::Text;
use crate::value::{Map, Value};

/// Shown for what is not there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missing {
    /// The word `undefined`, as in EMQX.
    #[default]
    Undefined,
    Null,
    Empty,
}

#[derive(Clone, Debug)]
pub struct Template {
    source: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
enum Part {
    Literal(Text),
    /// An empty path is the whole output.
    Placeholder {
        written: String,
        path: Vec<Place>,
    },
}

/// What a template makes of an output is longer than any MQTT packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateOverflow;

impl fmt::Display for TemplateOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the text made from the template has more than {OUTPUT_BYTES_MAX} bytes"
        )
    }
}

impl std::error::Error for TemplateOverflow {}

const OUTPUT_BYTES_MAX: usize = 256 << 20;
const TEMPLATE_BYTES_MAX: usize = 1 << 20;

impl Template {
    pub fn compile(text: &str) -> Result<Template, RuleError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let position = position(text, text.len() - rest.len() + start);
            let body = &rest[start + 2..];
            let Some(end) = body.find('}') else {
                return Err(
                    RuleError::new(position, "${ that is never closed", "a closing }").suggest(literal_dollar())
                );
            };
            add_literal(&mut parts, &rest[..start]);
            match &body[..end] {
                "$" => add_literal(&mut parts, "$"),
                written => parts.push(placeholder(written, position)?),
            }
            rest = &body[end + 1..];
        }
        add_literal(&mut parts, rest);
        if text.len() > TEMPLATE_BYTES_MAX {
            let found = format!("{} bytes", text.len());
            return Err(RuleError::new(
                Position { line: 1, column: 1 },
                found,
                "at most 1 MiB of template",
            ));
        }
        Ok(Template {
            source: text.to_owned(),
            parts,
        })
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// What stands between the braces, for checks and documentation.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Placeholder { written, .. } => Some(written.as_str()),
            Part::Literal(_) => None,
        })
    }

    /// The fields of an output, at its top, that the text is made of; not all of it as a whole.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        let name = |written: &'_ str| -> usize {
            let start = usize::from(written.starts_with('.'));
            written[start..]
                .find(['.', '['])
                .map_or(written.len(), |end| start + end)
        };
        self.placeholders()
            .map(move |written| written[..name(written)].trim_start_matches('.'))
            .filter(|name| !name.is_empty())
    }

    /// The text is the same for every output.
    pub fn is_constant(&self) -> bool {
        self.placeholders().next().is_none()
    }

    /// Nothing but one placeholder: its value need not become a text.
    pub fn is_single(&self) -> bool {
        matches!(self.parts.as_slice(), [Part::Placeholder { .. }])
    }

    /// Of a single placeholder the value as it is, so that null stays null and a number a number; otherwise the text.
    pub fn value(&self, output: &Map, missing: Missing) -> Result<Value, TemplateOverflow> {
        if let [Part::Placeholder { path, .. }] = self.parts.as_slice() {
            return Ok(look_up(output, path));
        }
        let mut text = Vec::new();
        self.render(output, missing, &mut text)?;
        Ok(Value::Text(text.into()))
    }

    /// What a template that is one placeholder finds, looked up once; `None` for any other.
    pub fn single<'o>(&self, output: &'o Map) -> Option<Single<'o>> {
        match self.parts.as_slice() {
            // The commonest key of all is not copied.
            [Part::Placeholder { path, .. }] => Some(Single(match path.as_slice() {
                [Place::Key(key)] => output.get(key).map_or(Cow::Owned(Value::Undefined), Cow::Borrowed),
                path => Cow::Owned(look_up(output, path)),
            })),
            _ => None,
        }
    }

    /// Appends the text.
    pub fn render(&self, output: &Map, missing: Missing, out: &mut Vec<u8>) -> Result<(), TemplateOverflow> {
        let start = out.len();
        for part in &self.parts {
            match part {
                Part::Literal(text) => out.extend_from_slice(text),
                Part::Placeholder { path, .. } => match path.as_slice() {
                    // Also the commonest key of all is not copied first.
                    [Place::Key(key)] => show(out, output.get(key).unwrap_or(&Value::Undefined), missing),
                    path => show(out, &look_up(output, path), missing),
                },
            }
            if out.len() - start > OUTPUT_BYTES_MAX {
                out.truncate(start);
                return Err(TemplateOverflow);
            }
        }
        Ok(())
    }
}

/// What a single placeholder has found.
#[derive(Clone, Debug)]
pub struct Single<'o>(Cow<'o, Value>);

impl Single<'_> {
    /// Nothing is there, or null.
    pub fn is_nothing(&self) -> bool {
        matches!(*self.0, Value::Undefined | Value::Null)
    }

    /// Appends it as the template would.
    pub fn show(&self, out: &mut Vec<u8>, missing: Missing) {
        show(out, &self.0, missing);
    }
}

fn look_up(output: &Map, path: &[Place]) -> Value {
    match path.split_first() {
        None => Value::Map(output.clone()),
        Some((Place::Key(key), rest)) => match output.get(key) {
            Some(value) => access::get(value, rest, &JsonLimits::default()),
            None => Value::Undefined,
        },
        Some(_) => Value::Undefined,
    }
}

fn show(out: &mut Vec<u8>, value: &Value, missing: Missing) {
    match (value, missing) {
        (Value::Undefined, Missing::Null) => out.extend_from_slice(b"null"),
        (Value::Undefined, Missing::Empty) => {}
        (Value::Map(_) | Value::Array(_), _) => {
            let form = if missing == Missing::Undefined {
                JsonForm::UndefinedAsString
            } else {
                JsonForm::UndefinedAsNull
            };
            json::encode_into(out, value, form);
        }
        _ => to_text(out, value),
    }
}

fn add_literal(parts: &mut Vec<Part>, text: &str) {
    if text.is_empty() {
        return;
    }
    if let Some(Part::Literal(before)) = parts.last_mut() {
        *before = Text::from([before.as_bytes(), text.as_bytes()].concat());
    } else {
        parts.push(Part::Literal(text.into()));
    }
}

/// `.a.b[1].2` in its steps.
fn placeholder(written: &str, position: Position) -> Result<Part, RuleError> {
    let bad = || {
        let expected = "names of letters, digits, _ and -, points between them, indexes in brackets";
        RuleError::new(position, format!("${{{written}}}"), expected).suggest(literal_dollar())
    };
    let mut path = Vec::new();
    let trimmed = written.strip_prefix('.').unwrap_or(written);
    for segment in trimmed.split('.').filter(|_| !trimmed.is_empty()) {
        let (key, indexes) = segment.split_at(segment.find('[').unwrap_or(segment.len()));
        let is_name = |character: char| character.is_alphanumeric() || matches!(character, '_' | '-' | '@' | '~');
        if key.is_empty() || !key.chars().all(is_name) {
            return Err(bad());
        }
        path.push(Place::Key(key.into()));
        let Some(inner) = indexes.strip_prefix('[') else {
            continue;
        };
        for index in inner.strip_suffix(']').ok_or_else(bad)?.split("][") {
            path.push(Place::Index(index.parse().map_err(|_| bad())?));
        }
    }
    Ok(Part::Placeholder {
        written: written.to_owned(),
        path,
    })
}

fn literal_dollar() -> Option<String> {
    Some("for a dollar sign before a brace write ${$}".to_owned())
}

fn position(text: &str, offset: usize) -> Position {
    let before = &text[..offset];
    let line = before.matches('\n').count() as u32 + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u32 + 1;
    Position { line, column }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Map {
        let json =
            br#"{"clientid": "c1", "n": 1, "f": 1.5, "null": null, "payload": "{\"t\": 20}", "list": [1, {"x": 2}]}"#;
        match json::decode(json, &JsonLimits::default()).unwrap() {
            Value::Map(map) => map,
            _ => unreachable!(),
        }
    }

    fn rendered(text: &str, missing: Missing) -> String {
        let mut out = Vec::new();
        Template::compile(text)
            .unwrap()
            .render(&output(), missing, &mut out)
            .unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn placeholders_are_filled_in() {
        let cases = [
            ("t/${clientid}/${.n}", "t/c1/1"),
            ("${payload.t}", "20"),
            ("${list[2].x} ${list[-2]}", "2 1"),
            ("${list}", r#"[1,{"x":2}]"#),
            ("${f} ${null}", "1.5 null"),
            ("${nobody} ${list[9]}", "undefined undefined"),
            ("${$}{clientid} $ {}", "${clientid} $ {}"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template, Missing::Undefined), expected, "{template}");
        }
        assert_eq!(rendered("${nobody}|${n}", Missing::Null), "null|1");
        assert_eq!(rendered("${nobody}|${n}", Missing::Empty), "|1");
        let whole = r#"{"clientid":"c1","f":1.5,"list":[1,{"x":2}],"n":1,"null":null,"payload":"{\"t\": 20}"}"#;
        assert_eq!(rendered("${.}", Missing::Undefined), whole);
        assert_eq!(rendered("${}", Missing::Undefined), whole);
    }

    #[test]
    fn a_single_placeholder_keeps_its_type() {
        let value = |text: &str| {
            Template::compile(text)
                .unwrap()
                .value(&output(), Missing::Null)
                .unwrap()
        };
        assert_eq!(value("${n}"), Value::Int(1));
        assert_eq!(value("${null}"), Value::Null);
        assert_eq!(value("${nobody}"), Value::Undefined);
        assert_eq!(value("x${n}"), Value::from("x1"));
        assert!(!Template::compile("${n} ").unwrap().is_single());
        let single = |text: &str| {
            let (template, output) = (Template::compile(text).unwrap(), output());
            template.single(&output).map(|single| {
                let mut out = Vec::new();
                single.show(&mut out, Missing::Undefined);
                (single.is_nothing(), String::from_utf8(out).unwrap())
            })
        };
        assert_eq!(single("${n}"), Some((false, "1".to_owned())));
        assert_eq!(single("${payload.t}"), Some((false, "20".to_owned())));
        assert_eq!(single("${list}"), Some((false, r#"[1,{"x":2}]"#.to_owned())));
        assert_eq!(single("${null}").map(|single| single.0), Some(true));
        assert_eq!(single("${nobody}").map(|single| single.0), Some(true));
        assert_eq!(single("x${n}"), None);
    }

    #[test]
    fn errors_say_where() {
        let error = |text: &str| Template::compile(text).unwrap_err().to_string();
        assert_eq!(
            error("a\n${b"),
            "line 2, column 1: found ${ that is never closed, expected a closing } (for a dollar sign before a brace write ${$})"
        );
        assert!(error("${a b}").starts_with("line 1, column 1: found ${a b}, expected names"));
        assert!(error("${a..b}").contains("${a..b}"));
        assert!(error("${a[x]}").contains("${a[x]}"));
    }
}
