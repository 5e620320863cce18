//! The file action: appends a batch at once. Blocking file operations run on the runtime's blocking threads.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::config::FileActionConfig;
use super::writer::RotatingWriter;
use crate::record::Record;
use crate::sink::{BatchOutcome, BoxFuture, DeliveryFailure, FieldTemplate, Sink};

pub struct FileSink {
    writer: Arc<Mutex<RotatingWriter>>,
    templates: Vec<FieldTemplate>,
}

impl FileSink {
    /// Creates the sink. The errors name the fields.
    pub fn new(config: &FileActionConfig) -> Result<FileSink, Vec<String>> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(problems);
        }
        Ok(FileSink {
            writer: Arc::new(Mutex::new(RotatingWriter::new(config))),
            templates: config.templates(),
        })
    }

    pub fn templates(&self) -> &[FieldTemplate] {
        &self.templates
    }

    async fn send_all(&self, batch: &[Record]) -> BatchOutcome {
        let mut lines = Vec::with_capacity(batch.iter().map(Record::len).sum());
        let mut outcome: BatchOutcome = batch.iter().map(|record| put_line(record, &mut lines)).collect();
        if let Err(reason) = self.wait(move |writer| writer.append(&lines, SystemTime::now())).await {
            let taken = outcome.iter_mut().filter(|result| result.is_ok());
            taken.for_each(|result| *result = Err(DeliveryFailure::Unreachable(reason.clone())));
        }
        outcome
    }

    async fn wait(
        &self,
        work: impl FnOnce(&mut RotatingWriter) -> Result<(), String> + Send + 'static,
    ) -> Result<(), String> {
        let writer = Arc::clone(&self.writer);
        let work = move || work(&mut writer.lock().unwrap_or_else(PoisonError::into_inner));
        let done = tokio::task::spawn_blocking(work).await;
        done.unwrap_or_else(|_| Err("the server is shutting down".to_owned()))
    }
}

fn put_line(record: &Record, lines: &mut Vec<u8>) -> Result<(), DeliveryFailure> {
    let json = record.field(0).unwrap_or(b"null");
    if let Err(error) = serde_json::from_slice::<serde::de::IgnoredAny>(json) {
        return Err(DeliveryFailure::Refused(format!("line: not valid JSON: {error}")));
    }
    // Valid JSON has line breaks only between values, where they have no meaning.
    lines.extend(json.iter().filter(|byte| !matches!(byte, b'\n' | b'\r')));
    lines.push(b'\n');
    Ok(())
}

impl Sink for FileSink {
    fn send<'a>(&'a self, batch: &'a [Record]) -> BoxFuture<'a, BatchOutcome> {
        Box::pin(self.send_all(batch))
    }

    fn check(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.wait(|writer| writer.check(SystemTime::now())))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // Closing cannot fail.
            let close = |writer: &mut RotatingWriter| {
                writer.close();
                Ok(())
            };
            let _ = self.wait(close).await;
        })
    }
}
