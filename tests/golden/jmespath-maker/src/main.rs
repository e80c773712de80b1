//! Answers `{"messages", "expressions"}` with what jmespatch and kafka-delta-ingest's functions make of them.

use std::io;
use std::sync::Arc;

use chrono::{TimeZone, Utc};
use jmespatch::functions::{ArgumentType, CustomFunction, Signature};
use jmespatch::{Context, JmespathError, Rcvar, Runtime, Variable};
use serde_json::{json, Value};

type Answer = Result<Rcvar, JmespathError>;

fn number(arguments: &[Rcvar], at: usize) -> f64 {
    arguments[at].as_number().expect("the signature asks for a number")
}

fn substr(arguments: &[Rcvar], _: &mut Context) -> Answer {
    let text = arguments[0].as_string().expect("the signature asks for a string");
    let (skip, take) = (number(arguments, 1) as usize, number(arguments, 2) as usize);
    Ok(Arc::new(Variable::String(text.chars().skip(skip).take(take).collect())))
}

fn iso8601(nanos: i64) -> Answer {
    Ok(Arc::new(Variable::String(format!("{:?}", Utc.timestamp_nanos(nanos)))))
}

fn seconds(arguments: &[Rcvar], _: &mut Context) -> Answer {
    iso8601(number(arguments, 0) as i64 * 1_000_000_000)
}

fn millis(arguments: &[Rcvar], _: &mut Context) -> Answer {
    iso8601(number(arguments, 0) as i64 * 1_000_000)
}

fn micros(arguments: &[Rcvar], _: &mut Context) -> Answer {
    iso8601(number(arguments, 0) as i64 * 1_000)
}

fn nanos(arguments: &[Rcvar], _: &mut Context) -> Answer {
    iso8601(number(arguments, 0) as i64 / 1_000 * 1_000)
}

fn millis_to_micro(arguments: &[Rcvar], _: &mut Context) -> Answer {
    Ok(Arc::new(Variable::Number((number(arguments, 0) as i64 * 1_000).into())))
}

fn runtime() -> Runtime {
    let mut made = Runtime::new();
    made.register_builtin_functions();
    let one = || Signature::new(vec![ArgumentType::Number], None);
    let three = vec![ArgumentType::String, ArgumentType::Number, ArgumentType::Number];
    made.register_function("substr", Box::new(CustomFunction::new(Signature::new(three, None), Box::new(substr))));
    made.register_function("epoch_seconds_to_iso8601", Box::new(CustomFunction::new(one(), Box::new(seconds))));
    made.register_function("epoch_millis_to_iso8601", Box::new(CustomFunction::new(one(), Box::new(millis))));
    made.register_function("epoch_micros_to_iso8601", Box::new(CustomFunction::new(one(), Box::new(micros))));
    made.register_function("epoch_nanos_to_iso8601", Box::new(CustomFunction::new(one(), Box::new(nanos))));
    made.register_function("epoch_millis_to_micro", Box::new(CustomFunction::new(one(), Box::new(millis_to_micro))));
    made
}

fn answer(runtime: &Runtime, text: &str, messages: &[Value]) -> Value {
    let compiled = match runtime.compile(text) {
        Ok(compiled) => compiled,
        Err(_) => return json!("refused"),
    };
    let found = messages.iter().map(|message| match compiled.search(message) {
        Ok(found) => json!({"result": serde_json::to_value(found).expect("a value")}),
        Err(_) => json!("fails"),
    });
    Value::Array(found.collect())
}

fn main() {
    let runtime = runtime();
    let questions: Value = serde_json::from_reader(io::stdin()).expect("JSON");
    let messages = questions["messages"].as_array().expect("messages");
    let expressions = questions["expressions"].as_array().expect("expressions");
    let answers: Vec<String> = expressions
        .iter()
        .map(|each| {
            let answer = answer(&runtime, each.as_str().expect("a text"), messages);
            format!("    {each}: {answer}")
        })
        .collect();
    let shown: Vec<String> = messages.iter().map(|message| format!("    {message}")).collect();
    println!("{{\n  \"messages\": [\n{}\n  ],", shown.join(",\n"));
    println!("  \"answers\": {{\n{}\n  }}\n}}", answers.join(",\n"));
}
