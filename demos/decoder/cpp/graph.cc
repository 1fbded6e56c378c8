#include "graph.h"

#include "tensorflow/core/framework/graph.pb.h"
#include "tensorflow/core/framework/variable.pb.h"
#include "tensorflow/core/platform/env.h"

namespace {

void check(const absl::Status& status, const std::string& what) {
  if (!status.ok()) throw Error(what + ": " + std::string(status.message()));
}

// Returns the name of the op of "scope/op:0".
std::string op_of(const std::string& tensor) { return tensor.substr(0, tensor.find(':')); }

}  // namespace

Graph::Graph(const std::string& meta_graph, const std::string& checkpoint, const std::vector<std::string>& libraries,
             int threads) {
  tensorflow::Env* env = tensorflow::Env::Default();
  for (const std::string& library : libraries) {
    void* handle = nullptr;  // stays loaded until the program ends
    check(env->LoadDynamicLibrary(library.c_str(), &handle), library);
  }
  check(tensorflow::ReadBinaryProto(env, meta_graph, &meta_), meta_graph);

  tensorflow::SessionOptions options;
  options.config.set_intra_op_parallelism_threads(threads);
  options.config.set_inter_op_parallelism_threads(1);
  session_.reset(tensorflow::NewSession(options));
  check(session_->Create(meta_.graph_def()), meta_graph);

  std::vector<std::string> initializers;
  const auto& collections = meta_.collection_def();
  const auto found = collections.find("variables");
  if (found != collections.end()) {
    for (const std::string& bytes : found->second.bytes_list().value()) {
      tensorflow::VariableDef def;
      if (!def.ParseFromString(bytes)) throw Error(meta_graph + ": the collection 'variables' is damaged");
      variables_[op_of(def.variable_name())] = {def.initial_value_name(), def.initializer_name(), def.snapshot_name()};
      initializers.push_back(def.initializer_name());
    }
  }
  if (!initializers.empty()) run({}, {}, initializers);
  if (!checkpoint.empty()) {
    Tensor name(tensorflow::DT_STRING, {});
    name.scalar<tensorflow::tstring>()() = checkpoint;
    const tensorflow::SaverDef& saver = meta_.saver_def();
    run({{saver.filename_tensor_name(), name}}, {}, {saver.restore_op_name()});
  }
}

Graph::~Graph() {
  if (session_) session_->Close().IgnoreError();
}

std::vector<Tensor> Graph::run(const Feeds& feeds, const std::vector<std::string>& fetches,
                               const std::vector<std::string>& targets) const {
  std::vector<Tensor> fetched;
  std::string first = !fetches.empty() ? fetches[0] : targets.empty() ? "nothing" : targets[0];
  check(session_->Run(feeds, fetches, targets, &fetched), "running " + first);
  return fetched;
}

std::vector<std::string> Graph::collection(const std::string& name) const {
  const auto found = meta_.collection_def().find(name);
  if (found == meta_.collection_def().end()) return {};
  const auto& nodes = found->second.node_list().value();
  return {nodes.begin(), nodes.end()};
}

const Graph::Variable& Graph::variable(const std::string& name) const {
  const auto found = variables_.find(op_of(name));
  if (found == variables_.end()) throw Error("the graph has no variable " + name);
  return found->second;
}

std::vector<Tensor> Graph::read(const std::vector<std::string>& variables) const {
  std::vector<std::string> snapshots;
  for (const std::string& name : variables) snapshots.push_back(variable(name).snapshot);
  return snapshots.empty() ? std::vector<Tensor>() : run({}, snapshots);
}

void Graph::assign(const std::vector<std::string>& variables, const std::vector<Tensor>& values) const {
  Feeds feeds;
  std::vector<std::string> initializers;
  for (size_t i = 0; i < variables.size(); ++i) {
    const Variable& found = variable(variables[i]);
    feeds.emplace_back(found.initial_value, values[i]);
    initializers.push_back(found.initializer);
  }
  if (!feeds.empty()) run(feeds, {}, initializers);
}
