//! The file action: whole lines, rotation, full disk, torn lines.

use std::fs;
use std::path::{Path, PathBuf};

use connectors::file::{FileActionConfig, FileSink};
use connectors::{DeliveryFailure, Sink};

use crate::support::{Directory, deliver, numbered, text};

fn config(directory: &Path) -> FileActionConfig {
    serde_json::from_value(serde_json::json!({ "directory": directory })).expect("a configuration")
}

fn sink(config: &FileActionConfig) -> FileSink {
    FileSink::new(config).expect("a valid action")
}

fn line(number: u32) -> Vec<Option<Vec<u8>>> {
    vec![text(format!("{{\"id\":\n{number}}}"))]
}

/// Returns the files by age, the current one last.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort_by_key(|path| (path.ends_with("messages.jsonl"), path.clone()));
    files
}

fn ids(files: &[PathBuf]) -> Vec<u64> {
    let text: String = files
        .iter()
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let id = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).expect("JSON")["id"]
            .as_u64()
            .expect("a number")
    };
    text.lines().map(id).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_record_is_a_line_and_bad_records_do_not_block() {
    let directory = Directory::new("file");
    let sink = sink(&config(&directory.join("new/place")));
    sink.check().await.expect("the file is writable");
    let outcome = sink
        .send(&numbered(0..10, |number| {
            if number == 4 { vec![text("{")] } else { line(number) }
        }))
        .await;
    let failed: Vec<usize> = (0..10).filter(|&index| outcome[index].is_err()).collect();
    assert_eq!(failed, [4]);
    assert!(
        matches!(&outcome[4], Err(DeliveryFailure::Refused(reason)) if reason.contains("not valid JSON")),
        "{outcome:?}"
    );
    assert_eq!(ids(&files(&directory.join("new/place"))), [0, 1, 2, 3, 5, 6, 7, 8, 9]);
}

#[tokio::test(flavor = "multi_thread")]
async fn completed_files_are_limited_by_files_max() {
    let directory = Directory::new("file");
    directory.write("messages-old.jsonl", "of another program\n");
    let config = FileActionConfig {
        file_bytes_max: 1024,
        files_max: 4,
        ..config(directory.path())
    };
    let sink = sink(&config);
    for start in (0..2000).step_by(50) {
        assert_eq!(deliver(&sink, &numbered(start..start + 50, line), |_| ()).await, 0);
    }
    fs::remove_file(directory.join("messages-old.jsonl")).expect("the file of another program exists");
    let files = files(directory.path());
    assert_eq!(files.len(), 4, "{files:?}");
    let ids = ids(&files);
    assert_eq!(
        ids,
        (2000 - ids.len() as u64..2000).collect::<Vec<u64>>(),
        "the last ones, in order"
    );
    for file in &files[..3] {
        let bytes = fs::metadata(file).expect("a file").len();
        assert!((1024..2048).contains(&bytes), "{bytes} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_line_is_truncated_and_earlier_lines_stay() {
    let directory = Directory::new("file");
    directory.write(
        "messages.jsonl",
        format!("{{\"id\":1}}\n{{\"id\":2,\"x\":\"{}", "y".repeat(10_000)),
    );
    let sink = sink(&config(directory.path()));
    assert_eq!(sink.send(&numbered(3..4, line)).await, vec![Ok(())]);
    assert_eq!(ids(&files(directory.path())), [1, 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn writing_resumes_after_a_full_disk() {
    let directory = Directory::new("file");
    std::os::unix::fs::symlink("/dev/full", directory.join("messages.jsonl")).expect("a link");
    let sink = sink(&config(directory.path()));
    let records = numbered(0..3, line);
    let outcome = sink.send(&records).await;
    assert!(
        matches!(&outcome[2], Err(DeliveryFailure::Unreachable(reason)) if reason.contains("No space left")),
        "{outcome:?}"
    );
    fs::remove_file(directory.join("messages.jsonl")).expect("a link");
    assert_eq!(sink.send(&records).await, vec![Ok(()); 3]);
    assert_eq!(ids(&files(directory.path())), [0, 1, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_actions_cannot_write_to_the_same_file() {
    let directory = Directory::new("file");
    let (first, second) = (sink(&config(directory.path())), sink(&config(directory.path())));
    first.check().await.expect("the file is not locked");
    let error = second.check().await.expect_err("the file is locked");
    assert!(error.contains("another action"), "{error}");
    first.close().await;
    second.check().await.expect("the file is unlocked again");
}

#[test]
fn problems_name_the_field() {
    for (json, field) in [
        (r#"{"directory": "here"}"#, "directory"),
        (r#"{"directory": "/tmp", "name": "../x"}"#, "name"),
        (r#"{"directory": "/tmp", "name": ""}"#, "name"),
        (r#"{"directory": "/tmp", "file_bytes_max": 1}"#, "file_bytes_max"),
        (r#"{"directory": "/tmp", "files_max": 1}"#, "files_max"),
    ] {
        let config: FileActionConfig = serde_json::from_str(json).expect("the right types");
        let problems = FileSink::new(&config).err().expect("problems").join("\n");
        assert!(problems.starts_with(field), "{json}: {problems}");
    }
}
