//! The PostgreSQL action: sends a batch as one transaction.

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

use super::client::{PostgresConnection, PostgresConnector};
use super::config::PostgresActionConfig;
use super::copy::{line_of, put_line};
use super::error::{describe, part};
use crate::isolate::{BATCH_TIME_MAX, PartResult, isolate};
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, FieldTemplate, Sink};
use crate::sql::{SqlDialect, SqlTemplate};

/// Size of a chunk of COPY data.
const COPY_CHUNK_BYTES: usize = 64 << 10;

pub struct PostgresSink {
    connector: Arc<PostgresConnector>,
    mode: StatementMode,
    templates: Vec<FieldTemplate>,
}

enum StatementMode {
    Execute { sql: String, parameters: usize },
    Copy { sql: String, columns: usize },
}

impl PostgresSink {
    /// Creates the sink. The errors name the fields.
    pub fn new(connector: Arc<PostgresConnector>, config: &PostgresActionConfig) -> Result<PostgresSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        let templates = config.templates();
        let mode = match &config.copy {
            Some(copy) => StatementMode::Copy {
                sql: copy.sql(),
                columns: templates.len(),
            },
            None => StatementMode::Execute {
                sql: SqlTemplate::parse(config.sql.as_deref().unwrap_or_default(), SqlDialect::Numbered)
                    .map_err(|problem| vec![problem])?
                    .sql,
                parameters: templates.len(),
            },
        };
        Ok(PostgresSink {
            connector,
            mode,
            templates,
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    async fn attempt(&self, batch: &[Record], range: Range<usize>, round: Instant) -> PartResult {
        if Instant::now() >= round {
            return PartResult::Failed(crate::DeliveryFailure::NotSent);
        }
        let mut taken = match self.connector.take().await {
            Ok(taken) => taken,
            Err(reason) => return PartResult::Failed(crate::DeliveryFailure::Unreachable(reason)),
        };
        let records = &batch[range.clone()];
        let result = match &self.mode {
            StatementMode::Execute { sql, parameters } => {
                execute(&mut taken.connection, sql, *parameters, records).await
            }
            StatementMode::Copy { sql, columns } => copy(&taken.connection, sql, *columns, records).await,
        };
        match result {
            Ok(()) => {
                taken.release();
                PartResult::Accepted
            }
            Err((error, at)) => {
                let part = part(&error, at.map(|at| range.start + at));
                // After other errors, the prepared statement may be outdated or the connection lost.
                if matches!(part, PartResult::Rejected { .. }) {
                    taken.release();
                }
                part
            }
        }
    }

    /// Connects, and prepares the statement.
    async fn check_all(&self) -> Result<(), String> {
        self.connector.check().await?;
        let StatementMode::Execute { sql, .. } = &self.mode else {
            return Ok(());
        };
        let mut taken = self.connector.take().await?;
        taken
            .connection
            .prepared(sql)
            .await
            .map_err(|error| format!("sql: {}", describe(&error)))?;
        taken.release();
        Ok(())
    }
}

/// The error and the failed record, if it is known. The transaction has ended.
type StatementFailure = (Error, Option<usize>);

/// Runs all rows in one pipelined transaction. After a failure the database skips the rest up to COMMIT, which then
/// rolls back.
async fn execute(
    connection: &mut PostgresConnection,
    sql: &str,
    parameters: usize,
    records: &[Record],
) -> Result<(), StatementFailure> {
    let statement = connection.prepared(sql).await.map_err(|error| (error, None))?;
    let client = &connection.client;
    let rows = records.iter().map(|record| {
        let values = (0..parameters).map(|index| TextParameter(record.field(index)));
        let values: Vec<TextParameter<'_>> = values.collect();
        let statement = &statement;
        async move { client.execute_raw(statement, values).await }.boxed()
    });
    // Requests are written in the order in which their futures are first polled.
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
        // The error of a deferred constraint does not name the row.
        None => committed.map_err(|error| (error, None)),
    }
}

/// Returns the result of a future that may have resolved at its first poll.
async fn finish<F: Future>(early: Option<F::Output>, future: F) -> F::Output {
    match early {
        Some(output) => output,
        None => future.await,
    }
}

/// Copies rows in an explicit transaction. Without it, the database would confirm the rows before it commits them.
async fn copy(
    connection: &PostgresConnection,
    sql: &str,
    columns: usize,
    records: &[Record],
) -> Result<(), StatementFailure> {
    let client = &connection.client;
    let nowhere = |error| (error, None);
    client.batch_execute("BEGIN").await.map_err(nowhere)?;
    if let Err(error) = copy_rows(client, sql, columns, records).await {
        let at = line_of(&error);
        // If the rollback fails as well, the connection is lost and the database rolls back.
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

/// A parameter in text format, which the database parses itself. It knows all types, including user-defined ones, and
/// reports invalid values. Only `bytea` uses the binary format.
#[derive(Debug)]
pub(super) struct TextParameter<'a>(pub Option<&'a [u8]>);

impl ToSql for TextParameter<'_> {
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
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        let key = |index: usize| batch[index].key_hash();
        Box::pin(async move {
            let round = Instant::now() + BATCH_TIME_MAX;
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
