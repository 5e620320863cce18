//! `Rule`: a compiled rule and its sources.

use std::fmt;

use rule_values::{Text, nearest};

use crate::error::{RuleError, TextPosition};
use crate::event::{Column, EventKind};
use crate::expr::{Expr, OutputField, OutputPath};
use crate::limits::RuleLimits;
use crate::parse::{SqlStatement, StatementKind, statement};
use crate::resolve::NameResolver;

/// An entry in FROM.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FromEntry {
    /// Messages that clients publish.
    Topic(String),
    Event(EventKind),
    /// Messages of a source, by its name in FROM: `$bridges/mqtt:name`, `$sources/kafka:name`.
    Bridge(String),
}

/// A rule can be shared between threads. The evaluator has all mutable state.
pub struct Rule {
    sql: String,
    id: Text,
    sources: Vec<FromEntry>,
    pub(crate) body: RuleBody,
    pub(crate) condition: Option<Expr>,
    /// The condition can be evaluated without any field.
    pub(crate) is_condition_first: bool,
    pub(crate) limits: RuleLimits,
}

pub(crate) enum RuleBody {
    Select(Vec<OutputField>),
    Foreach(Box<Foreach>),
}

pub(crate) struct Foreach {
    /// The fields before the array.
    pub fields: Vec<OutputField>,
    pub array: Expr,
    /// The path where the array itself is written.
    pub array_target: OutputPath,
    /// The name of an element.
    pub item: Text,
    pub each: Option<Vec<OutputField>>,
    pub incase: Option<Expr>,
}

impl Rule {
    pub fn compile(sql: &str, limits: &RuleLimits) -> Result<Rule, RuleError> {
        let SqlStatement { kind, from, condition } = statement(sql, limits)?;
        let mut sources = Vec::new();
        for (name, position) in &from {
            add_sources(&mut sources, name, *position)?;
        }
        let mut resolver = NameResolver::new(kinds(&sources), limits);
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

    /// Sets the name that `metadata.rule_id` returns.
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

    pub fn sources(&self) -> &[FromEntry] {
        &self.sources
    }

    /// Returns whether an output can have a top-level field with this name. False is certain. True is not certain if
    /// the output contains fields of the message.
    pub fn can_output(&self, name: &str) -> bool {
        let is_column = || columns_of(&kinds(&self.sources)).any(|column| column.name() == name);
        let gives = |fields: &[OutputField]| {
            fields.iter().any(|field| match field {
                OutputField::All(_) => is_column(),
                OutputField::Value { target, .. } => target.name.as_bytes() == name.as_bytes(),
            })
        };
        match &self.body {
            RuleBody::Select(fields) => gives(fields),
            RuleBody::Foreach(foreach) => match &foreach.each {
                Some(each) => gives(each),
                None => {
                    let own = [&foreach.item, &foreach.array_target.name];
                    is_column() || gives(&foreach.fields) || own.iter().any(|own| own.as_bytes() == name.as_bytes())
                }
            },
        }
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

/// Returns the kinds of events of the sources.
fn kinds(sources: &[FromEntry]) -> Vec<EventKind> {
    let kind = |source: &FromEntry| match source {
        FromEntry::Topic(_) => EventKind::MessagePublish,
        FromEntry::Event(kind) => *kind,
        FromEntry::Bridge(_) => EventKind::Source,
    };
    sources.iter().map(kind).collect()
}

fn add_sources(sources: &mut Vec<FromEntry>, name: &str, position: TextPosition) -> Result<(), RuleError> {
    if let Err(error) = mqtt::validate_filter(name) {
        let expected = format!("a topic filter or an event ({error})");
        return Err(RuleError::new(position, format!("{name:?}"), expected));
    }
    if name.starts_with("$events/") {
        return add_events(sources, name, position);
    }
    if name.starts_with("$share/") || name.starts_with("$queue/") {
        let error = RuleError::new(position, format!("{name:?}"), "a topic filter that is not shared");
        return Err(error.suggest(Some("every rule receives each message exactly once".to_owned())));
    }
    let is_bridge = name.starts_with("$bridges/") || name.starts_with("$sources/");
    sources.push(if is_bridge {
        FromEntry::Bridge(name.to_owned())
    } else {
        FromEntry::Topic(name.to_owned())
    });
    Ok(())
}

fn add_events(sources: &mut Vec<FromEntry>, name: &str, position: TextPosition) -> Result<(), RuleError> {
    if let Some(kind) = EventKind::from_topic(name) {
        sources.push(FromEntry::Event(kind));
        return Ok(());
    }
    let selectable = EventKind::ALL.iter().filter(|kind| **kind != EventKind::MessagePublish);
    let mut matching = selectable
        .filter(|kind| mqtt::has_wildcards(name) && kind.topics().iter().any(|topic| mqtt::filter_matches(name, topic)))
        .map(|kind| FromEntry::Event(*kind))
        .peekable();
    if matching.peek().is_some() {
        sources.extend(matching);
        return Ok(());
    }
    let error = RuleError::new(
        position,
        format!("unknown event {name:?}"),
        "an event of docs/reference/sys-topics.md",
    );
    if name == "$events/message_publish" {
        return Err(error.suggest(Some(
            "use a topic filter for published messages, for example \"#\"".to_owned(),
        )));
    }
    let names = EventKind::ALL.iter().flat_map(|kind| kind.topics()).copied();
    let suggestion = nearest(name, names).map(|nearest| format!("did you mean {nearest:?}?"));
    Err(error.suggest(suggestion))
}

/// Returns the columns that at least one of the kinds has.
pub(crate) fn columns_of(kinds: &[EventKind]) -> impl Iterator<Item = Column> {
    Column::ALL
        .iter()
        .copied()
        .filter(|column| kinds.iter().any(|kind| kind.has(*column)))
}
