//! `Rule`: the text of a rule, compiled once, and what it listens to.

use std::fmt;

use crate::error::{Position, RuleError, nearest};
use crate::event::{Column, EventKind};
use crate::expr::{Expr, Field, Target};
use crate::json::JsonLimits;
use crate::parse::{Statement, StatementKind, statement};
use crate::resolve::Resolver;
use crate::text::Text;

/// What a name stands for that the events of a rule do not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownColumns {
    /// An error when the rule is compiled: most are misspelt.
    #[default]
    Refuse,
    /// `undefined` in every message, as in EMQX.
    Undefined,
}

/// Bounds of what a rule may cost. Time is bounded by steps: an expression, 64 bytes of text or a value each is one.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub sql_bytes_max: usize,
    /// Of parentheses, arguments and paths in the text.
    pub nesting_max: u16,
    pub unknown_columns: UnknownColumns,
    /// For one message and one rule.
    pub steps_max: u64,
    /// Of all that functions make for one message and one rule, and of its outputs.
    pub result_bytes_max: usize,
    /// Of outputs of FOREACH for one message.
    pub outputs_max: usize,
    pub json: JsonLimits,
    /// Of a compiled regular expression.
    pub regex_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sql_bytes_max: 64 << 10,
            nesting_max: 48,
            unknown_columns: UnknownColumns::default(),
            steps_max: 1_000_000,
            result_bytes_max: 16 << 20,
            outputs_max: 10_000,
            json: JsonLimits::default(),
            regex_bytes_max: 1 << 20,
        }
    }
}

/// One of the things in FROM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Messages that clients publish.
    Topic(String),
    Event(EventKind),
    /// Messages of a source, by its name in FROM: `$bridges/mqtt:name`, `$sources/kafka:name`.
    Bridge(String),
}

/// Shared between threads as it is; whatever evaluation needs besides is in the evaluator.
pub struct Rule {
    sql: String,
    id: Text,
    sources: Vec<Source>,
    pub(crate) body: Body,
    pub(crate) condition: Option<Expr>,
    /// No field is needed to decide whether the condition holds.
    pub(crate) is_condition_first: bool,
    pub(crate) limits: Limits,
}

pub(crate) enum Body {
    Select(Vec<Field>),
    Foreach(Box<Foreach>),
}

pub(crate) struct Foreach {
    /// Before the last one.
    pub fields: Vec<Field>,
    pub array: Expr,
    /// Where the array itself is put.
    pub array_target: Target,
    /// The name of an element.
    pub item: Text,
    pub each: Option<Vec<Field>>,
    pub incase: Option<Expr>,
}

impl Rule {
    pub fn compile(sql: &str, limits: &Limits) -> Result<Rule, RuleError> {
        let Statement { kind, from, condition } = statement(sql, limits)?;
        let mut sources = Vec::new();
        for (name, position) in &from {
            add_sources(&mut sources, name, *position)?;
        }
        let mut resolver = Resolver::new(kinds(&sources), limits);
        let mut condition = condition;
        let body = match kind {
            StatementKind::Select(fields) => resolver.select(fields)?,
            StatementKind::Foreach { fields, each, incase } => resolver.foreach(fields, each, incase)?,
        };
        if let Some(condition) = &mut condition {
            resolver.condition(condition)?;
        }
        Ok(Rule {
            sql: sql.to_owned(),
            id: Text::EMPTY,
            sources,
            is_condition_first: !resolver.needs_fields_first(condition.as_ref()),
            body,
            condition,
            limits: *limits,
        })
    }

    /// The name that `metadata.rule_id` shows.
    pub fn with_id(mut self, id: &str) -> Rule {
        self.id = id.into();
        self
    }

    pub fn id(&self) -> &Text {
        &self.id
    }

    pub fn sql(&self) -> &str {
        &self.sql
    }

    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether an output can have a field of this name at its top. False is certain; true is not, where an output has what a message has.
    pub fn can_give(&self, name: &str) -> bool {
        let is_column = || columns_of(&kinds(&self.sources)).any(|column| column.name() == name);
        let gives = |fields: &[Field]| {
            fields.iter().any(|field| match field {
                Field::All(_) => is_column(),
                Field::Value { target, .. } => target.name.as_bytes() == name.as_bytes(),
            })
        };
        match &self.body {
            Body::Select(fields) => gives(fields),
            Body::Foreach(foreach) => match &foreach.each {
                Some(each) => gives(each),
                None => {
                    let own = [&foreach.item, &foreach.array_target.name];
                    is_column() || gives(&foreach.fields) || own.iter().any(|own| own.as_bytes() == name.as_bytes())
                }
            },
        }
    }

    /// Whether one message can have several outputs.
    pub fn is_foreach(&self) -> bool {
        matches!(self.body, Body::Foreach(_))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rule")
            .field("id", &self.id)
            .field("sql", &self.sql)
            .finish_non_exhaustive()
    }
}

/// The kinds of events that the sources bring.
fn kinds(sources: &[Source]) -> Vec<EventKind> {
    let kind = |source: &Source| match source {
        Source::Topic(_) => EventKind::MessagePublish,
        Source::Event(kind) => *kind,
        Source::Bridge(_) => EventKind::Source,
    };
    sources.iter().map(kind).collect()
}

fn add_sources(sources: &mut Vec<Source>, name: &str, position: Position) -> Result<(), RuleError> {
    if let Err(error) = mqtt::validate_filter(name) {
        let expected = format!("a topic filter or an event ({error})");
        return Err(RuleError::new(position, format!("{name:?}"), expected));
    }
    if name.starts_with("$events/") {
        return add_events(sources, name, position);
    }
    if name.starts_with("$share/") || name.starts_with("$queue/") {
        let error = RuleError::new(position, format!("{name:?}"), "a topic filter that is not shared");
        return Err(error.suggest(Some(
            "a rule sees every message once, whatever runs beside it".to_owned(),
        )));
    }
    let is_bridge = name.starts_with("$bridges/") || name.starts_with("$sources/");
    sources.push(if is_bridge {
        Source::Bridge(name.to_owned())
    } else {
        Source::Topic(name.to_owned())
    });
    Ok(())
}

fn add_events(sources: &mut Vec<Source>, name: &str, position: Position) -> Result<(), RuleError> {
    if let Some(kind) = EventKind::from_topic(name) {
        sources.push(Source::Event(kind));
        return Ok(());
    }
    let selectable = EventKind::ALL.iter().filter(|kind| **kind != EventKind::MessagePublish);
    let mut matching = selectable
        .filter(|kind| mqtt::has_wildcards(name) && kind.topics().iter().any(|topic| mqtt::filter_matches(name, topic)))
        .map(|kind| Source::Event(*kind))
        .peekable();
    if matching.peek().is_some() {
        sources.extend(matching);
        return Ok(());
    }
    let error = RuleError::new(position, format!("unknown event {name:?}"), "an event of docs/rules.md");
    if name == "$events/message_publish" {
        return Err(error.suggest(Some(
            "published messages come from a topic filter, for example \"#\"".to_owned(),
        )));
    }
    let names = EventKind::ALL.iter().flat_map(|kind| kind.topics()).copied();
    let suggestion = nearest(name, names).map(|nearest| format!("did you mean {nearest:?}?"));
    Err(error.suggest(suggestion))
}

/// Columns that at least one of the kinds has.
pub(crate) fn columns_of(kinds: &[EventKind]) -> impl Iterator<Item = Column> {
    Column::ALL
        .iter()
        .copied()
        .filter(|column| kinds.iter().any(|kind| kind.has(*column)))
}
