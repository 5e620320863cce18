//! The action: a batch as one transaction.

use std::error::Error as StdError;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::join_all;
use futures_util::{FutureExt, SinkExt};
use tokio_postgres::types::{Format, IsNull, ToSql, Type};
use tokio_postgres::{Client, Error};

use super::client::{Connection, PostgresConnector};
use super::config::PostgresActionConfig;
use super::copy::{line_of, put_line};
use super::error::{describe, part};
use super::statement::Statement;
use crate::isolate::{Part, ROUND, isolate};
use crate::record::Record;
use crate::sink::{BoxFuture, Outcome, Sink, Template};

/// Bytes of COPY data that are handed over at once.
const COPY_CHUNK_BYTES: usize = 64 << 10;

pub struct PostgresSink {
    connector: Arc<PostgresConnector>,
    way: Way,
    templates: Vec<Template>,
}

enum Way {
    Execute { sql: String, parameters: usize },
    Copy { sql: String, columns: usize },
}

impl PostgresSink {
    /// The errors name the fields.
    pub fn new(connector: Arc<PostgresConnector>, config: &PostgresActionConfig) -> Result<PostgresSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let templates = config.templates();
        let way = match &config.copy {
            Some(copy) => Way::Copy {
                sql: copy.sql(),
                columns: templates.len(),
            },
            None => Way::Execute {
                sql: Statement::parse(config.sql.as_deref().unwrap_or_default())
                    .map_err(|problem| vec![problem])?
                    .sql,
                parameters: templates.len(),
            },
        };
        Ok(PostgresSink {
            connector,
            way,
            templates,
        })
    }

    pub fn templates(&self) -> &[Template] {
        &self.templates
    }

    async fn attempt(&self, batch: &[Record], range: Range<usize>, round: Instant) -> Part {
        if Instant::now() >= round {
            return Part::Failed(crate::Failure::Untried);
        }
        let mut taken = match self.connector.take().await {
            Ok(taken) => taken,
            Err(reason) => return Part::Failed(crate::Failure::Away(reason)),
        };
        let records = &batch[range.clone()];
        let result = match &self.way {
            Way::Execute { sql, parameters } => execute(&mut taken.connection, sql, *parameters, records).await,
            Way::Copy { sql, columns } => copy(&taken.connection, sql, *columns, records).await,
        };
        match result {
            Ok(()) => {
                taken.give_back();
                Part::Taken
            }
            Err((error, at)) => {
                let part = part(&error, at.map(|at| range.start + at));
                // Otherwise what is prepared may be what is wrong, or the connection is lost.
                if matches!(part, Part::Poisoned { .. }) {
                    taken.give_back();
                }
                part
            }
        }
    }

    /// Connects, and has the database look at the statement.
    async fn check_all(&self) -> Result<(), String> {
        self.connector.check().await?;
        let Way::Execute { sql, .. } = &self.way else {
            return Ok(());
        };
        let mut taken = self.connector.take().await?;
        taken
            .connection
            .prepared(sql)
            .await
            .map_err(|error| format!("sql: {}", describe(&error)))?;
        taken.give_back();
        Ok(())
    }
}

/// What went wrong, and at which record, if that is known. The transaction is over.
type Failed = (Error, Option<usize>);

/// All in one transaction, without waiting for answers in between. After a failure the database skips the rest up to the
/// COMMIT, which then rolls back.
async fn execute(connection: &mut Connection, sql: &str, parameters: usize, records: &[Record]) -> Result<(), Failed> {
    let statement = connection.prepared(sql).await.map_err(|error| (error, None))?;
    let client = &connection.client;
    let rows = records.iter().map(|record| {
        let values = (0..parameters).map(|index| Value(record.field(index)));
        let values: Vec<Value<'_>> = values.collect();
        let statement = &statement;
        async move { client.execute_raw(statement, values).await }.boxed()
    });
    // Requests are written in the order in which the futures are polled first.
    let mut begin = pin!(client.batch_execute("BEGIN"));
    let mut commit = pin!(client.batch_execute("COMMIT"));
    let begun = begin.as_mut().now_or_never();
    let mut rows: Vec<_> = rows.collect();
    let mut early = Vec::with_capacity(rows.len());
    for row in &mut rows {
        early.push(row.as_mut().now_or_never());
    }
    let committed = commit.as_mut().now_or_never();
    finish(begun, begin).await.map_err(|error| (error, None))?;
    let results = join_all(early.into_iter().zip(rows).map(|(early, row)| finish(early, row))).await;
    let failed = results
        .into_iter()
        .enumerate()
        .find_map(|(at, result)| Some((result.err()?, Some(at))));
    let committed = finish(committed, commit).await;
    match failed {
        Some(failed) => Err(failed),
        // A constraint that is checked at the end does not say whose fault it is.
        None => committed.map_err(|error| (error, None)),
    }
}

/// A future that may have resolved when it was polled first.
async fn finish<F: Future>(early: Option<F::Output>, future: F) -> F::Output {
    match early {
        Some(output) => output,
        None => future.await,
    }
}

/// In a transaction of its own making: without one the database would say that it has the rows before it has committed them.
async fn copy(connection: &Connection, sql: &str, columns: usize, records: &[Record]) -> Result<(), Failed> {
    let client = &connection.client;
    let nowhere = |error| (error, None);
    client.batch_execute("BEGIN").await.map_err(nowhere)?;
    if let Err(error) = copy_rows(client, sql, columns, records).await {
        let at = line_of(&error);
        // Where this fails too the connection is lost, and with it the transaction.
        let _ = client.batch_execute("ROLLBACK").await;
        return Err((error, at));
    }
    client.batch_execute("COMMIT").await.map_err(nowhere)
}

async fn copy_rows(client: &Client, sql: &str, columns: usize, records: &[Record]) -> Result<(), Error> {
    let mut rows = pin!(client.copy_in::<str, Bytes>(sql).await?);
    let mut chunk = Vec::with_capacity(COPY_CHUNK_BYTES);
    for (index, record) in records.iter().enumerate() {
        put_line(record, columns, &mut chunk);
        if chunk.len() >= COPY_CHUNK_BYTES || index + 1 == records.len() {
            rows.send(std::mem::take(&mut chunk).into()).await?;
        }
    }
    rows.finish().await.map(drop)
}

/// A parameter as text, which the database reads itself: it knows every type, also those made by its users, and says
/// what is wrong with a text. Only bytes have a form of their own.
#[derive(Debug)]
struct Value<'a>(Option<&'a [u8]>);

impl ToSql for Value<'_> {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        let Some(bytes) = self.0 else {
            return Ok(IsNull::Yes);
        };
        out.put_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    fn encode_format(&self, ty: &Type) -> Format {
        match *ty {
            Type::BYTEA => Format::Binary,
            _ => Format::Text,
        }
    }

    fn to_sql_checked(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn StdError + Sync + Send>> {
        self.to_sql(ty, out)
    }
}

impl Sink for PostgresSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, Outcome> {
        let key = |index: usize| batch[index].key_hash();
        Box::pin(async move {
            let round = Instant::now() + ROUND;
            isolate(batch.len(), key, |range| self.attempt(batch, range, round).boxed()).await
        })
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.check_all())
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.connector.close();
        Box::pin(async {})
    }
}
