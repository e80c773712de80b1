import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;

/** Runs day.sql against a PostgreSQL server beside Debezium's connector, and writes what the connector sends. */
public class Recorder {
    private static final List<SourceRecord> records = Collections.synchronizedList(new ArrayList<>());

    public static void main(String[] args) throws Exception {
        String port = args[0];
        Path out = Path.of(args[1]);
        List<String> before = section("-- before", "-- day");
        List<String> day = section("-- day", null);
        try (Connection database = DriverManager.getConnection("jdbc:postgresql://127.0.0.1:" + port + "/shop", "shop", "");
                Statement statement = database.createStatement()) {
            statement.execute(String.join("\n", before));
            DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine
                .create(ChangeEventFormat.of(Connect.class))
                .using(settings(port))
                .notifying((batch, committer) -> {
                    for (RecordChangeEvent<SourceRecord> event : batch) {
                        records.add(event.record());
                        committer.markProcessed(event);
                    }
                    committer.markBatchFinished();
                })
                .build();
            var executor = Executors.newSingleThreadExecutor();
            executor.execute(engine);
            await("\"op\":\"r\"", 3);
            for (String transaction : day) {
                statement.execute(transaction);
                Thread.sleep(20); // so that events have different times, as those of a real day
            }
            statement.execute("INSERT INTO finished VALUES (1)");
            await("\"table\":\"finished\"", 1);
            engine.close();
            executor.shutdown();
            executor.awaitTermination(30, TimeUnit.SECONDS);
            records.removeIf(each -> each.topic().endsWith(".finished"));
            write(out.resolve("orders.jsonl"), true);
            write(out.resolve("orders-without-schema.jsonl"), false);
            try (ResultSet rows = statement.executeQuery("SELECT json_agg(orders ORDER BY id)::text FROM orders")) {
                rows.next();
                Files.writeString(out.resolve("final.json"), rows.getString(1) + "\n");
            }
        }
    }

    private static Properties settings(String port) {
        Properties made = new Properties();
        made.putAll(Map.ofEntries(
            Map.entry("name", "shop"),
            Map.entry("connector.class", "io.debezium.connector.postgresql.PostgresConnector"),
            Map.entry("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore"),
            Map.entry("topic.prefix", "shop"),
            Map.entry("database.hostname", "127.0.0.1"),
            Map.entry("database.port", port),
            Map.entry("database.user", "shop"),
            Map.entry("database.password", "shop"),
            Map.entry("database.dbname", "shop"),
            Map.entry("plugin.name", "pgoutput"),
            Map.entry("table.include.list", "public.orders,public.finished"),
            Map.entry("provide.transaction.metadata", "true"),
            Map.entry("heartbeat.interval.ms", "200")));
        return made;
    }

    private static List<String> section(String from, String until) throws Exception {
        List<String> lines = Files.readAllLines(Path.of("day.sql"));
        int start = find(lines, from) + 1;
        return lines.subList(start, until == null ? lines.size() : find(lines, until));
    }

    private static int find(List<String> lines, String prefix) {
        for (int nth = 0; nth < lines.size(); nth++) {
            if (lines.get(nth).startsWith(prefix)) return nth;
        }
        throw new IllegalStateException("day.sql has no line " + prefix);
    }

    private static void await(String text, int count) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
        JsonConverter plain = converter(false, false);
        while (System.nanoTime() < deadline) {
            long found;
            synchronized (records) {
                found = records.stream().filter(each -> new String(bytes(plain, each.topic(), each.valueSchema(), each.value())).contains(text)).count();
            }
            if (found >= count) return;
            Thread.sleep(50);
        }
        throw new IllegalStateException("no " + text + " within a minute");
    }

    private static void write(Path path, boolean schemas) throws Exception {
        JsonConverter keys = converter(schemas, true), values = converter(schemas, false);
        try (PrintWriter lines = new PrintWriter(Files.newBufferedWriter(path))) {
            for (SourceRecord each : records) {
                byte[] key = bytes(keys, each.topic(), each.keySchema(), each.key());
                byte[] value = bytes(values, each.topic(), each.valueSchema(), each.value());
                lines.printf("{\"topic\": \"%s\", \"key\": %s, \"value\": %s}%n", each.topic(), coded(key), coded(value));
            }
        }
    }

    private static JsonConverter converter(boolean schemas, boolean key) {
        JsonConverter made = new JsonConverter();
        made.configure(Map.of("schemas.enable", schemas), key);
        return made;
    }

    private static byte[] bytes(JsonConverter converter, String topic, org.apache.kafka.connect.data.Schema schema, Object value) {
        byte[] made = value == null ? null : converter.fromConnectData(topic, schema, value);
        return made == null ? new byte[0] : made;
    }

    private static String coded(byte[] bytes) {
        return bytes.length == 0 ? "null" : "\"" + Base64.getEncoder().encodeToString(bytes) + "\"";
    }
}
