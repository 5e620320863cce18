//! Texts with placeholders for fields of the output of a rule: `${payload.t}`, `${.clientid}`, `${.}`, `${list[1]}`.
//!
//! `${$}` stands for a dollar sign. A missing value is rendered as `undefined`, `null` or an empty text, as the caller
//! specifies.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;

use rule_values::{
    Map, Text, Value,
    json::{self, JsonForm, JsonLimits},
};

use crate::access::{self, ResolvedStep};
use crate::error::{RuleError, TextPosition};
use crate::functions::to_text;

/// The text for a missing value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingText {
    /// The word `undefined`, as in EMQX.
    #[default]
    Undefined,
    Null,
    Empty,
}

#[derive(Clone, Debug)]
pub struct Template {
    source: String,
    parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug)]
enum TemplatePart {
    Literal(Text),
    /// An empty path is the complete output.
    Placeholder {
        text: String,
        path: Vec<ResolvedStep>,
        form: ValueEncoding,
    },
}

/// The encoding of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueEncoding {
    /// Unchanged.
    Text,
    /// Inside a JSON string: quotes, backslashes and control characters are escaped.
    JsonString,
    /// In place of a JSON value.
    JsonValue,
}

/// The rendered text is longer than any MQTT packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TemplateOverflow;

impl fmt::Display for TemplateOverflow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the text of the template has more than {OUTPUT_BYTES_MAX} bytes")
    }
}

impl std::error::Error for TemplateOverflow {}

const OUTPUT_BYTES_MAX: usize = 256 << 20;
pub(crate) const TEMPLATE_BYTES_MAX: usize = 1 << 20;

impl Template {
    pub fn compile(text: &str) -> Result<Template, RuleError> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some(start) = rest.find("${") {
            let position = position(text, text.len() - rest.len() + start);
            let body = &rest[start + 2..];
            let Some(end) = body.find('}') else {
                return Err(RuleError::new(position, "${ that is not closed", "a closing }").suggest(literal_dollar()));
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
                TextPosition { line: 1, column: 1 },
                found,
                "at most 1 MiB of template",
            ));
        }
        Ok(Template {
            source: text.to_owned(),
            parts,
        })
    }

    /// Same as [`Template::compile`], for a text that may be a JSON document. If it is an object or an array, values
    /// are encoded as JSON, so that a value cannot end the surrounding string or add members.
    ///
    /// Outside strings, a text that is valid JSON (such as a payload) is inserted unchanged, any other text becomes a
    /// string, and a missing value becomes `null`.
    pub fn compile_document(text: &str) -> Result<Template, RuleError> {
        let mut template = Template::compile(text)?;
        if let Some(forms) = template.json_forms() {
            let placeholders = template.parts.iter_mut().filter_map(|part| match part {
                TemplatePart::Placeholder { form, .. } => Some(form),
                TemplatePart::Literal(_) => None,
            });
            placeholders.zip(forms).for_each(|(form, found)| *form = found);
        }
        Ok(template)
    }

    /// Returns the form of each placeholder, or `None` if the text is not a JSON object or array.
    fn json_forms(&self) -> Option<Vec<ValueEncoding>> {
        let (mut skeleton, mut forms) = (Vec::new(), Vec::new());
        let (mut is_in_string, mut is_escaped) = (false, false);
        for part in &self.parts {
            match part {
                TemplatePart::Literal(text) => {
                    for &byte in text.as_bytes() {
                        is_in_string ^= byte == b'"' && !is_escaped;
                        is_escaped = is_in_string && byte == b'\\' && !is_escaped;
                    }
                    skeleton.extend_from_slice(text.as_bytes());
                }
                TemplatePart::Placeholder { .. } if is_in_string => forms.push(ValueEncoding::JsonString),
                TemplatePart::Placeholder { .. } => {
                    skeleton.extend_from_slice(b"null");
                    forms.push(ValueEncoding::JsonValue);
                }
            }
        }
        let is_document = matches!(
            json::decode(&skeleton, &JsonLimits::default()),
            Ok(Value::Map(_) | Value::Array(_))
        );
        is_document.then_some(forms)
    }

    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the text between the braces of each placeholder, for checks and documentation.
    pub fn placeholders(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            TemplatePart::Placeholder { text: written, .. } => Some(written.as_str()),
            TemplatePart::Literal(_) => None,
        })
    }

    /// Returns the top-level fields of the output that the template uses, excluding `${.}`.
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

    /// Returns whether the text is the same for every output.
    pub fn is_constant(&self) -> bool {
        self.placeholders().next().is_none()
    }

    /// Returns whether the template is exactly one placeholder. Its value need not be converted to text.
    pub fn is_single(&self) -> bool {
        matches!(self.parts.as_slice(), [TemplatePart::Placeholder { .. }])
    }

    /// Returns the value of a single placeholder with its type (null remains null, a number remains a number),
    /// otherwise the text.
    pub fn value(&self, output: &Map, missing: MissingText) -> Result<Value, TemplateOverflow> {
        if let [TemplatePart::Placeholder { path, .. }] = self.parts.as_slice() {
            return Ok(look_up(output, path));
        }
        let mut text = Vec::new();
        self.render(output, missing, &mut text)?;
        Ok(Value::Text(text.into()))
    }

    /// Looks up the value of a template that is a single placeholder. Returns `None` for other templates.
    pub fn single<'o>(&self, output: &'o Map) -> Option<SingleValue<'o>> {
        match self.parts.as_slice() {
            // Do not copy the key in the most frequent case.
            [TemplatePart::Placeholder { path, .. }] => Some(SingleValue(match path.as_slice() {
                [ResolvedStep::Key(key)] => output.get(key).map_or(Cow::Owned(Value::Undefined), Cow::Borrowed),
                path => Cow::Owned(look_up(output, path)),
            })),
            _ => None,
        }
    }

    /// Appends the rendered text.
    pub fn render(&self, output: &Map, missing: MissingText, out: &mut Vec<u8>) -> Result<(), TemplateOverflow> {
        let start = out.len();
        for part in &self.parts {
            match part {
                TemplatePart::Literal(text) => out.extend_from_slice(text),
                TemplatePart::Placeholder { path, form, .. } => match path.as_slice() {
                    // Do not copy the key in the most frequent case.
                    [ResolvedStep::Key(key)] => put(out, output.get(key).unwrap_or(&Value::Undefined), missing, *form),
                    path => put(out, &look_up(output, path), missing, *form),
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

/// The value of a single placeholder.
#[derive(Clone, Debug)]
pub struct SingleValue<'o>(Cow<'o, Value>);

impl SingleValue<'_> {
    /// Returns whether the value is missing or null.
    pub fn is_missing(&self) -> bool {
        matches!(*self.0, Value::Undefined | Value::Null)
    }

    /// Appends the value in the same form as `render`.
    pub fn show(&self, out: &mut Vec<u8>, missing: MissingText) {
        show(out, &self.0, missing);
    }
}

fn look_up(output: &Map, path: &[ResolvedStep]) -> Value {
    match path.split_first() {
        None => Value::Map(output.clone()),
        Some((ResolvedStep::Key(key), rest)) => match output.get(key) {
            Some(value) => {
                let found = access::get_with(value, rest, &mut |text| Ok::<_, Infallible>(decoded(text)));
                found.unwrap_or_default()
            }
            None => Value::Undefined,
        },
        Some(_) => Value::Undefined,
    }
}

thread_local! {
    /// Cache of the latest strings that were parsed as JSON.
    static DECODED: RefCell<VecDeque<(Text, Value)>> = const { RefCell::new(VecDeque::new()) };
}

/// Parses a string as JSON. Returns `Undefined` if it is not valid. The result is cached, because several placeholders,
/// templates and outputs can name fields of one payload.
fn decoded(text: &Text) -> Value {
    const ENTRIES_MAX: usize = 4;
    let decode = || json::decode(text, &JsonLimits::default()).unwrap_or_default();
    DECODED.with_borrow_mut(|entries| {
        if let Some((_, value)) = entries.iter().find(|entry| entry.0.is_shared_with(text)) {
            return value.clone();
        }
        let value = decode();
        if text.is_shared() {
            entries.truncate(ENTRIES_MAX - 1);
            entries.push_front((text.clone(), value.clone()));
        }
        value
    })
}

fn put(out: &mut Vec<u8>, value: &Value, missing: MissingText, form: ValueEncoding) {
    match form {
        ValueEncoding::Text => show(out, value, missing),
        ValueEncoding::JsonString => {
            let start = out.len();
            show(out, value, missing);
            let text = out.split_off(start);
            json::encode_in_string(out, &text);
        }
        ValueEncoding::JsonValue => match value {
            Value::Text(text) if json::decode(text, &JsonLimits::default()).is_ok() => out.extend_from_slice(text),
            _ => json::encode_into(out, value, JsonForm::UndefinedAsNull),
        },
    }
}

fn show(out: &mut Vec<u8>, value: &Value, missing: MissingText) {
    match (value, missing) {
        (Value::Undefined, MissingText::Null) => out.extend_from_slice(b"null"),
        (Value::Undefined, MissingText::Empty) => {}
        (Value::Map(_) | Value::Array(_), _) => {
            let form = if missing == MissingText::Undefined {
                JsonForm::UndefinedAsString
            } else {
                JsonForm::UndefinedAsNull
            };
            json::encode_into(out, value, form);
        }
        _ => to_text(out, value),
    }
}

fn add_literal(parts: &mut Vec<TemplatePart>, text: &str) {
    if text.is_empty() {
        return;
    }
    if let Some(TemplatePart::Literal(before)) = parts.last_mut() {
        *before = Text::from([before.as_bytes(), text.as_bytes()].concat());
    } else {
        parts.push(TemplatePart::Literal(text.into()));
    }
}

/// Splits `.a.b[1].2` into steps.
fn placeholder(written: &str, position: TextPosition) -> Result<TemplatePart, RuleError> {
    let bad = || {
        let expected = "names of letters, digits, _ and -, separated by points, with indexes in brackets";
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
        path.push(ResolvedStep::Key(key.into()));
        let Some(inner) = indexes.strip_prefix('[') else {
            continue;
        };
        for index in inner.strip_suffix(']').ok_or_else(bad)?.split("][") {
            path.push(ResolvedStep::Index(index.parse().map_err(|_| bad())?));
        }
    }
    Ok(TemplatePart::Placeholder {
        text: written.to_owned(),
        path,
        form: ValueEncoding::Text,
    })
}

fn literal_dollar() -> Option<String> {
    Some("write ${$} for a dollar sign before a brace".to_owned())
}

fn position(text: &str, offset: usize) -> TextPosition {
    let before = &text[..offset];
    let line = before.matches('\n').count() as u32 + 1;
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count() as u32 + 1;
    TextPosition { line, column }
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

    fn rendered(text: &str, missing: MissingText) -> String {
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
            ("${unknown} ${list[9]}", "undefined undefined"),
            ("${$}{clientid} $ {}", "${clientid} $ {}"),
        ];
        for (template, expected) in cases {
            assert_eq!(rendered(template, MissingText::Undefined), expected, "{template}");
        }
        assert_eq!(rendered("${unknown}|${n}", MissingText::Null), "null|1");
        assert_eq!(rendered("${unknown}|${n}", MissingText::Empty), "|1");
        let whole = r#"{"clientid":"c1","f":1.5,"list":[1,{"x":2}],"n":1,"null":null,"payload":"{\"t\": 20}"}"#;
        assert_eq!(rendered("${.}", MissingText::Undefined), whole);
        assert_eq!(rendered("${}", MissingText::Undefined), whole);
    }

    #[test]
    fn values_in_a_json_document_are_encoded() {
        let output = json::decode(
            br#"{"id": "x\",\"admin\":true,\"y\":\"\\\n", "plain": "c1", "n": 1.5, "yes": true, "null": null,
                "json": "{\"t\": [20]}", "open": "{\"t\": 20", "two": "1,\"a\":2", "map": {"a": "\""}, "empty": ""}"#,
            &JsonLimits::default(),
        );
        let Ok(Value::Map(output)) = output else { unreachable!() };
        for (template, expected) in [
            // Inside strings.
            (r#"{"id":"${id}"}"#, r#"{"id":"x\",\"admin\":true,\"y\":\"\\\n"}"#),
            (r#"{"id":"a ${plain} ${n} ${yes}"}"#, r#"{"id":"a c1 1.5 true"}"#),
            (r#"{"${id}":1}"#, r#"{"x\",\"admin\":true,\"y\":\"\\\n":1}"#),
            (r#"{"m":"${map}"}"#, r#"{"m":"{\"a\":\"\\\"\"}"}"#),
            (r#"{"m":"${gone}${null}${empty}"}"#, r#"{"m":"undefinednull"}"#),
            (
                r#"{"q":"\"${plain}\\","b":"${two}"}"#,
                r#"{"q":"\"c1\\","b":"1,\"a\":2"}"#,
            ),
            // In place of a value.
            (r#"{"v":${n},"w":${yes},"x":${null}}"#, r#"{"v":1.5,"w":true,"x":null}"#),
            (r#" [ ${plain} , ${empty} ] "#, r#" [ "c1" , "" ] "#),
            (r#"{"v":${json}}"#, r#"{"v":{"t": [20]}}"#),
            (r#"{"v":${open}}"#, r#"{"v":"{\"t\": 20"}"#),
            (r#"{"v":${two}}"#, r#"{"v":"1,\"a\":2"}"#),
            (r#"{"v":${map}}"#, r#"{"v":{"a":"\""}}"#),
            (r#"{"v":${gone}}"#, r#"{"v":null}"#),
            // Not a JSON document: as in other texts.
            ("${id}", "x\",\"admin\":true,\"y\":\"\\\n"),
            (r#""${id}""#, "\"x\",\"admin\":true,\"y\":\"\\\n\""),
            ("{${plain}}", "{c1}"),
            (r#"{"v":1${n}}"#, r#"{"v":11.5}"#),
            (r#"{"v":"${plain}"#, r#"{"v":"c1"#),
        ] {
            let mut out = Vec::new();
            let compiled = Template::compile_document(template).unwrap();
            compiled.render(&output, MissingText::Undefined, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{template}");
        }
    }

    #[test]
    fn bytes_that_are_not_utf_8_do_not_break_a_json_document() {
        let output = Map::from_iter([("b".into(), Value::Text(Text::from(vec![b'a', 0xFF, b'"'])))]);
        for (template, expected) in [
            (r#"{"b":"${b}"}"#, "{\"b\":\"a\u{FFFD}\\\"\"}"),
            ("[${b}]", "[\"a\u{FFFD}\\\"\"]"),
        ] {
            let mut out = Vec::new();
            let compiled = Template::compile_document(template).unwrap();
            compiled.render(&output, MissingText::Undefined, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), expected);
        }
    }

    #[test]
    fn a_single_placeholder_keeps_its_type() {
        let value = |text: &str| {
            Template::compile(text)
                .unwrap()
                .value(&output(), MissingText::Null)
                .unwrap()
        };
        assert_eq!(value("${n}"), Value::Int(1));
        assert_eq!(value("${null}"), Value::Null);
        assert_eq!(value("${unknown}"), Value::Undefined);
        assert_eq!(value("x${n}"), Value::from("x1"));
        assert!(!Template::compile("${n} ").unwrap().is_single());
        let single = |text: &str| {
            let (template, output) = (Template::compile(text).unwrap(), output());
            template.single(&output).map(|single| {
                let mut out = Vec::new();
                single.show(&mut out, MissingText::Undefined);
                (single.is_missing(), String::from_utf8(out).unwrap())
            })
        };
        assert_eq!(single("${n}"), Some((false, "1".to_owned())));
        assert_eq!(single("${payload.t}"), Some((false, "20".to_owned())));
        assert_eq!(single("${list}"), Some((false, r#"[1,{"x":2}]"#.to_owned())));
        assert_eq!(single("${null}").map(|single| single.0), Some(true));
        assert_eq!(single("${unknown}").map(|single| single.0), Some(true));
        assert_eq!(single("x${n}"), None);
    }

    #[test]
    fn errors_say_where() {
        let error = |text: &str| Template::compile(text).unwrap_err().to_string();
        assert_eq!(
            error("a\n${b"),
            "line 2, column 1: found ${ that is not closed, expected a closing } (write ${$} for a dollar sign before a brace)"
        );
        assert!(error("${a b}").starts_with("line 1, column 1: found ${a b}, expected names"));
        assert!(error("${a..b}").contains("${a..b}"));
        assert!(error("${a[x]}").contains("${a[x]}"));
    }
}
